"""Check before the work that a result can be written, and explain errors of the disk."""

import errno
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from ..errors import StatetrimError
from ..maths.formatting import bytes_text

_DISK_FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT)
_UNWRITABLE_ERRORS = (errno.EFBIG, errno.EROFS, errno.EIO)


class NoSpace(OSError):
    """The disk is full, or too small for what is to be written."""


def check_space(directory: Path, nbytes: int) -> None:
    """Raise NoSpace if the disk of `directory` has no room for a result of `nbytes` bytes.

    Files directly in `directory` count as written parts of the result.
    """
    written = sum(path.stat().st_size for path in directory.iterdir() if path.is_file())
    out = directory.parent.resolve()
    check_free(out, nbytes - written, "the result will need another", "its disk")


def check_free(directory: Path, nbytes: int, need: str, disk: str, hint: str = "") -> None:
    """Raise NoSpace, whose sentence is made of `need`, `disk` and `hint`, if the disk of
    `directory`, which may not exist, has fewer than `nbytes` bytes free."""
    free_bytes = shutil.disk_usage(nearest_existing(directory)).free
    if nbytes > free_bytes:
        raise NoSpace(
            errno.ENOSPC,
            f"{need} {bytes_text(nbytes)}, and {disk} has {bytes_text(free_bytes)} free: "
            f"{directory}{hint}",
        )


def check_writable(out: str | Path) -> None:
    """Raise StatetrimError unless the nearest existing parent of `out` is a writable directory."""
    path = Path(out).absolute()
    directory = nearest_existing(path.parent)
    if not directory.is_dir() or not os.access(directory, os.W_OK | os.X_OK):
        raise StatetrimError(
            f"{out} cannot be written: {directory} is not a directory that may be written to"
        )


def nearest_existing(path: Path) -> Path:
    """`path`, or the nearest of its parents that exists."""
    while not path.exists():
        path = path.parent
    return path


@contextmanager
def explain_disk_errors(partial: Path) -> Iterator[None]:
    """Within, an OSError of a full or unwritable disk becomes a NoSpace whose one sentence says
    what is kept in `partial`, and a KeyboardInterrupt gets such a sentence as its message."""
    try:
        with _noted_interrupts() as interrupts:
            try:
                yield
            except Exception:
                if interrupts:
                    raise KeyboardInterrupt from None
                raise
    except KeyboardInterrupt as interrupt:
        again = "run the same command again to"
        if partial.exists():
            message = f"what is finished is kept in {partial}; {again} resume"
        else:
            message = f"nothing was kept; {again} start over"
        # Not a subclass: Python ends by SIGINT only for KeyboardInterrupt itself.
        raise KeyboardInterrupt(message).with_traceback(interrupt.__traceback__) from None
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


@contextmanager
def _noted_interrupts() -> Iterator[list[int]]:
    """Within, every Ctrl-C is listed as well: C code of libraries may turn its KeyboardInterrupt
    into another error."""
    interrupts: list[int] = []
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield interrupts
        return

    def note(number: int, frame: FrameType | None) -> None:
        interrupts.append(number)
        handler(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, handler)
