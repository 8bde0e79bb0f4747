"""Whether a result can be written: known before the work where it can be, and in one sentence."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import StatetrimError
from ..maths.units import MIB

_DISK_FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT)
_UNWRITABLE_ERRORS = (errno.EFBIG, errno.EROFS, errno.EIO)


class NoSpace(OSError):
    """A disk is full, or will be."""


def check_space(directory: Path, nbytes: int) -> None:
    """Refuse a result of so many bytes, less those that are there, before the work."""
    needed_bytes = nbytes - sum(
        path.stat().st_size for path in directory.iterdir() if path.is_file()
    )
    free_bytes = shutil.disk_usage(directory).free
    if needed_bytes > free_bytes:
        raise NoSpace(
            errno.ENOSPC,
            f"the result will need {needed_bytes / MIB:,.0f} MiB more, and its disk has "
            f"{free_bytes / MIB:,.0f} MiB free: {directory.parent.resolve()}",
        )


def check_writable(out: str | Path) -> None:
    """Refuse a place where nothing can be written, before the work."""
    path = Path(out).absolute()
    directory = next(parent for parent in path.parents if parent.exists())
    if not directory.is_dir() or not os.access(directory, os.W_OK | os.X_OK):
        raise StatetrimError(
            f"{out} cannot be written: {directory} is not a directory that may be written to"
        )


@contextmanager
def explain_disk_errors(partial: Path) -> Iterator[None]:
    """Within, what a disk refuses is said in one sentence, with what is kept in `partial`; a
    KeyboardInterrupt carries such a sentence as its note."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        again = "run the same command again to"
        if partial.exists():
            interrupt.add_note(f"what is finished is kept in {partial}; {again} resume")
        else:
            interrupt.add_note(f"nothing was kept; {again} start over")
        raise
    except NoSpace:
        raise
    except OSError as error:
        directory, kept = partial.parent.resolve(), f"what is finished is kept in {partial.name}"
        if error.errno in _DISK_FULL_ERRORS:
            text = (
                f"the disk of {directory} is full; free some space and run the same command again"
            )
        elif error.errno in _UNWRITABLE_ERRORS:
            text = f"{directory} cannot be written: {error.strerror}"
        else:
            raise
        raise NoSpace(error.errno, f"{text}, {kept}") from None
