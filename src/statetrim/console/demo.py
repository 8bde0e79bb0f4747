"""What a person sees of `demo`: its commands, and how far the training is."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from . import terminal


def show_line(text: str) -> None:
    """A command or a remark between tables."""
    terminal.say(text, style="bold" if text.startswith("$") else "dim")


@contextmanager
def muted(quiet: bool) -> Iterator[None]:
    """Tables are not shown."""
    terminal.out.quiet = quiet
    try:
        yield
    finally:
        terminal.out.quiet = False


@contextmanager
def steps_progress(label: str) -> Iterator[Any]:
    """Yields a function to call with the steps done and in all; in a log, a line a quarter."""
    if not terminal.err.is_terminal:

        def line(done: int, total: int) -> None:
            if total >= 4 and done % (total // 4) == 0:
                terminal.note(f"{label}: step {done} of {total}")

        yield line
        return
    columns = (TextColumn(label), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=terminal.err, transient=True) as progress:
        task = progress.add_task(label, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
