"""Console output of `demo`."""

from collections.abc import Iterator
from contextlib import contextmanager

from . import terminal


def show_line(text: str) -> None:
    """Print a command, which begins with $, or a remark."""
    terminal.print_text(text, style="bold" if text.startswith("$") else "dim")


@contextmanager
def muted(quiet: bool) -> Iterator[None]:
    """Within, nothing is printed to standard output if `quiet`."""
    terminal.out.quiet = quiet
    try:
        yield
    finally:
        terminal.out.quiet = False
