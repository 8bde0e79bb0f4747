"""Write files and directories so that they appear complete or not at all.

Each is written in a scratch directory with a random name, next to the target, and renamed to the
target once it is synced to disk. So no existing file is opened, followed or overwritten on the way,
and what a killed process leaves behind is recognised by its name.
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
    """Yield a scratch path to write to; on success it replaces `target`, on failure it is deleted.

    It may become a file or a directory. The parent of `target` must exist. A directory that is not
    empty is never replaced: that raises OSError.
    """
    scratch = scratch_path(target)
    try:
        yield scratch
        move_into_place(scratch, target)
    except BaseException:
        discard(scratch)
        raise


def scratch_path(target: Path) -> Path:
    """Create a scratch directory next to `target`; return a path in it that does not exist yet."""
    directory = tempfile.mkdtemp(prefix=_SCRATCH_PREFIX, suffix=_SCRATCH_SUFFIX, dir=target.parent)
    return Path(directory) / target.name


def move_into_place(scratch: Path, target: Path) -> None:
    """Sync `scratch` to disk, rename it to `target` and remove the scratch directory around it.

    Of a directory its direct entries are synced too, not those further below.
    """
    if scratch.is_dir():
        for path in scratch.iterdir():
            sync(path)
    sync(scratch)
    scratch.replace(target)
    scratch.parent.rmdir()


def discard(scratch: Path) -> None:
    """Delete the scratch directory of an unfinished write."""
    shutil.rmtree(scratch.parent, ignore_errors=True)


def remove(path: Path) -> None:
    """Delete a file, a link, or a directory with all that it holds; nothing if it is absent."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def is_scratch(path: Path) -> bool:
    """Whether `path` is a scratch directory, which a killed process may have left."""
    has_scratch_name = path.name.startswith(_SCRATCH_PREFIX) and path.name.endswith(_SCRATCH_SUFFIX)
    return has_scratch_name and path.is_dir() and not path.is_symlink()


def sync(path: Path) -> None:
    """Sync a file, or a directory's entries (names, not contents), to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
