"""What a person sees of `demo`: its commands."""

from collections.abc import Iterator
from contextlib import contextmanager

from . import terminal


def show_line(text: str) -> None:
    """A command or a remark between tables."""
    terminal.print_text(text, style="bold" if text.startswith("$") else "dim")


@contextmanager
def muted(quiet: bool) -> Iterator[None]:
    """Tables are not shown."""
    terminal.out.quiet = quiet
    try:
        yield
    finally:
        terminal.out.quiet = False
