"""A bar where a person watches: in a terminal, or in a cell of a notebook."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from math import ceil, isfinite

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bars
from rich.table import Column

from ..maths.formatting import bytes_text, duration_text, shorten
from . import OnProgress, Progress, ignore
from .plain_console import PlainConsole

_LABEL = 28  # characters of what is at work; the bar takes what is left of the line
_CELLS = 32  # of a notebook's bar
_PAUSE = 0.2  # seconds between two pictures of it


@dataclass(frozen=True)
class Whole:
    """How far the whole run is, of which a bar is one part."""

    share: float
    told: str
    seconds_left: float


WholeRun = Callable[[Progress], Whole]


def bar(label: str) -> AbstractContextManager[OnProgress]:
    """The bar that fits where this runs; none where nobody would see it."""
    if _in_notebook():
        return notebook_bar(label)
    if sys.stderr.isatty():
        return terminal_bar(label, PlainConsole(stderr=True))
    return nullcontext(ignore)


@contextmanager
def terminal_bar(
    label: str, console: Console, whole: WholeRun | None = None
) -> Iterator[OnProgress]:
    """A line with a bar, and one below for the whole run; they are gone when it is done."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None, table_column=Column(ratio=1)),
        TextColumn("{task.fields[amount]}", markup=False),
        TextColumn("{task.fields[left]}", markup=False),
    )
    with Bars(*columns, console=console, transient=True, expand=True) as bars:
        yield _TerminalBar(label, bars, whole)


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

    def __init__(self, label: str, bars: Bars, whole: WholeRun | None) -> None:
        self.label, self.bars, self.whole = label, bars, whole
        self.part: str | None = None
        self.task = TaskID(0)
        self.all: TaskID | None = None
        self.speed = Speed()

    def __call__(self, progress: Progress) -> None:
        part = shorten(progress.label or self.label, _LABEL)
        if part != self.part:
            for task in (self.task, self.all) if self.part is not None else ():
                if task is not None:
                    self.bars.remove_task(task)
            self.part, self.speed = part, Speed()
            self.task = self.bars.add_task(part, total=progress.total, amount="", left="")
            if self.whole is not None:
                self.all = self.bars.add_task("in all", total=1.0, amount="", left="")
        told = amount(progress, self.speed(progress))
        seconds = self.speed.seconds_left(progress)
        left = "" if seconds is None else str(timedelta(seconds=ceil(seconds)))
        self._set(self.task, progress.done, max(1, progress.total), told, left)
        if self.whole is not None and self.all is not None:
            run = self.whole(progress)
            self._set(self.all, run.share, 1.0, run.told, time_left(run.seconds_left))

    def _set(self, task: TaskID, done: float, total: float, told: str, left: str) -> None:
        self.bars.update(task, completed=done, total=total, amount=told, left=left)


def amount(progress: Progress, speed: float) -> str:
    """How much is done, next to the bar, with a speed when there is one."""
    if progress.unit == "bytes":
        told = f"{bytes_text(progress.done)} of {bytes_text(progress.total)}"
        return f"{told} {bytes_text(speed)}/s" if speed else told
    if progress.loss is not None:
        told = f"{progress.done}/{progress.total}"
        told += f" loss {progress.loss:.4f}" if isfinite(progress.loss) else " no finite loss"
        return f"{told} {speed:,.0f} tokens/s" if speed else told
    return f"{progress.done:,}/{progress.total:,} {progress.unit}"


def time_left(seconds: float) -> str:
    return f"~{duration_text(seconds)} left"


class Speed:
    """What is done a second, since the first report; tokens, where they are told."""

    def __init__(self) -> None:
        self.began: tuple[float, int, int] | None = None

    def __call__(self, progress: Progress) -> float:
        counted = progress.done if progress.tokens is None else progress.tokens
        now = time.monotonic()
        if self.began is None or counted < self.began[1]:
            self.began = now, counted, progress.done
        return (counted - self.began[1]) / max(now - self.began[0], 1e-9)

    def seconds_left(self, progress: Progress) -> float | None:
        """None before anything was done."""
        if self.began is None or progress.done <= self.began[2]:
            return None
        elapsed = time.monotonic() - self.began[0]
        return elapsed / (progress.done - self.began[2]) * (progress.total - progress.done)


def _in_notebook() -> bool:
    """Jupyter's shell, and those of Colab and Databricks, which are made from it."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return any(kind.__name__ == "ZMQInteractiveShell" for kind in type(shell).__mro__)
