"""Files and directories that appear whole or not at all.

Each is written in a directory of its own beside its place, with a name that nobody can guess, and
gets its own name once it is on the disk. So nothing that lies there is opened, followed or
overwritten on the way, and what a killed process leaves is known by its name.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PREFIX, _SUFFIX = ".statetrim-", ".tmp"


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yields where to write the file or directory that will be `target`."""
    written = scratch_for(target)
    try:
        yield written
        finish(written, target)
    except BaseException:
        discard(written)
        raise


def scratch_for(target: Path) -> Path:
    """Where to write what `finish` will give the name `target`."""
    directory = tempfile.mkdtemp(prefix=_PREFIX, suffix=_SUFFIX, dir=target.parent)
    return Path(directory) / target.name


def finish(written: Path, target: Path) -> None:
    """Give what was written its name, once it is on the disk."""
    if written.is_dir():
        for path in written.iterdir():
            _sync(path)
    _sync(written)
    written.replace(target)
    written.parent.rmdir()


def discard(written: Path) -> None:
    """Remove what was not finished."""
    shutil.rmtree(written.parent, ignore_errors=True)


def is_scratch(path: Path) -> bool:
    """Whether a killed process may have left this."""
    named = path.name.startswith(_PREFIX) and path.name.endswith(_SUFFIX)
    return named and path.is_dir() and not path.is_symlink()


def sync_directory(path: Path) -> None:
    """Have the names in a directory on the disk."""
    _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
