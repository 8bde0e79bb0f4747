"""A bar where a person watches: in a terminal, or in a cell of a notebook."""

import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from ..maths.formatting import size
from . import OnProgress, Progress, ignore

_CELLS = 32  # of a notebook's bar
_PAUSE = 0.2  # seconds between two pictures of it


def bar(label: str) -> AbstractContextManager[OnProgress]:
    """The bar that fits where this runs; none where nobody would see it."""
    if _in_notebook():
        return notebook_bar(label)
    if sys.stderr.isatty():
        return terminal_bar(label, Console(stderr=True))
    return nullcontext(ignore)


@contextmanager
def terminal_bar(label: str, console: Console) -> Iterator[OnProgress]:
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[amount]}", markup=False),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=console, transient=True) as bars:
        yield _TerminalBar(label, bars)


@contextmanager
def notebook_bar(label: str) -> Iterator[OnProgress]:
    """Plain text, which any notebook shows without widgets, and which needs no escaping."""
    from IPython.display import display

    handle = display({"text/plain": ""}, raw=True, display_id=True)
    speed, drawn = Speed(), 0.0

    def draw(progress: Progress) -> None:
        nonlocal drawn
        told = amount(progress, speed(progress))
        if time.monotonic() - drawn >= _PAUSE or progress.done == progress.total:
            drawn = time.monotonic()
            full = _CELLS * progress.done // max(1, progress.total)
            text = f"{progress.label or label} {'█' * full}{'░' * (_CELLS - full)} {told}"
            handle.update({"text/plain": text}, raw=True)

    try:
        yield draw
    finally:
        handle.update({"text/plain": ""}, raw=True)


class _TerminalBar:
    """One bar at a time: a new part takes the place of the one before."""

    def __init__(self, label: str, bars: Bars) -> None:
        self.label, self.bars = label, bars
        self.part: str | None = None
        self.task = TaskID(0)
        self.speed = Speed()

    def __call__(self, progress: Progress) -> None:
        part = progress.label or self.label
        if part != self.part:
            if self.part is not None:
                self.bars.remove_task(self.task)
            self.part, self.speed = part, Speed()
            self.task = self.bars.add_task(part, total=progress.total, amount="")
        told = amount(progress, self.speed(progress))
        self.bars.update(self.task, completed=progress.done, total=progress.total, amount=told)


def amount(progress: Progress, speed: float) -> str:
    """How much is done, beside the bar."""
    if progress.unit == "bytes":
        return f"{size(progress.done)} of {size(progress.total)} {size(speed)}/s"
    if progress.loss is not None:
        steps = f"{progress.done}/{progress.total}"
        return f"{steps} loss {progress.loss:.4f} {speed:,.0f} tokens/s"
    return f"{progress.done:,}/{progress.total:,} {progress.unit}"


class Speed:
    """What is done a second, since the first report; tokens, where they are told."""

    def __init__(self) -> None:
        self.began: tuple[float, int] | None = None

    def __call__(self, progress: Progress) -> float:
        done = progress.done if progress.tokens is None else progress.tokens
        now = time.monotonic()
        if self.began is None or done < self.began[1]:
            self.began = now, done
        return (done - self.began[1]) / max(now - self.began[0], 1e-9)


def _in_notebook() -> bool:
    """Jupyter's shell, and those of Colab and Databricks, which are made from it."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return any(kind.__name__ == "ZMQInteractiveShell" for kind in type(shell).__mro__)
