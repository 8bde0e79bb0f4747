"""Let one process at a time write to a directory."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from ..errors import StatetrimError


@contextmanager
def locked(partial: Path) -> Iterator[None]:
    """Hold an exclusive lock on the directory `partial`, which is created, and removed if empty.

    Parents that had to be created are removed too if they are empty. Raises StatetrimError, without
    waiting, if another process holds the lock, if `partial` is a file or a link, and on Windows.
    """
    if partial.is_symlink() or (partial.exists() and not partial.is_dir()):
        raise StatetrimError(f"{partial} is not a directory that statetrim made; move it away")
    try:
        import fcntl
    except ImportError:
        raise StatetrimError(
            "on Windows statetrim only inspects models, because nothing locks a directory that "
            "it writes there; run it in WSL, on Linux or on macOS"
        ) from None
    new_parents = [parent for parent in partial.parents if not parent.exists()]
    partial.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            descriptor = os.open(partial, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(descriptor), partial.stat()):
                raise FileNotFoundError  # the other process has just finished
        except (BlockingIOError, FileNotFoundError):
            raise StatetrimError(
                f"another process is writing {partial.with_suffix('')}; wait for it or choose "
                f"another output"
            ) from None
        try:
            yield
        finally:
            remove_empty(partial)  # still locked, so no other process has started to write there
            for parent in new_parents:
                with suppress(OSError):
                    parent.rmdir()


def remove_empty(directory: Path) -> None:
    """Remove the directory if it holds nothing but empty directories.

    Otherwise it stays, though some of the empty directories in it may be removed.
    """
    for path in (*sorted(directory.rglob("*"), reverse=True), directory):
        try:
            path.rmdir()
        except OSError:
            return
