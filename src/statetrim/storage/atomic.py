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

_SCRATCH_PREFIX, _SCRATCH_SUFFIX = ".statetrim-", ".tmp"


@contextmanager
def atomic_write(target: Path) -> Iterator[Path]:
    """Yields where to write the file or directory that will be `target`."""
    scratch = scratch_path(target)
    try:
        yield scratch
        move_into_place(scratch, target)
    except BaseException:
        discard(scratch)
        raise


def scratch_path(target: Path) -> Path:
    """Where to write what `finish` will give the name `target`."""
    directory = tempfile.mkdtemp(prefix=_SCRATCH_PREFIX, suffix=_SCRATCH_SUFFIX, dir=target.parent)
    return Path(directory) / target.name


def move_into_place(scratch: Path, target: Path) -> None:
    """Give what was written its name, once it is on the disk."""
    if scratch.is_dir():
        for path in scratch.iterdir():
            _fsync(path)
    _fsync(scratch)
    scratch.replace(target)
    scratch.parent.rmdir()


def discard(scratch: Path) -> None:
    """Remove what was not finished."""
    shutil.rmtree(scratch.parent, ignore_errors=True)


def is_scratch(path: Path) -> bool:
    """Whether a killed process may have left this."""
    has_scratch_name = path.name.startswith(_SCRATCH_PREFIX) and path.name.endswith(_SCRATCH_SUFFIX)
    return has_scratch_name and path.is_dir() and not path.is_symlink()


def sync_directory(path: Path) -> None:
    """Have the names in a directory on the disk."""
    _fsync(path)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
