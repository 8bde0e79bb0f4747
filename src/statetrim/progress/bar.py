"""Progress bars for terminals and notebooks."""

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
from . import OnProgress, Progress, ignore_progress
from .plain_console import PlainConsole

_LABEL_WIDTH = 28  # characters; the bar takes what is left of the line
_NOTEBOOK_WIDTH = 32  # characters
_REDRAW_SECONDS = 0.2  # of the notebook bar


@dataclass(frozen=True)
class RunProgress:
    """Progress of the whole run, of which a bar shows one step; `share` is in [0, 1]."""

    share: float
    text: str
    seconds_left: float


RunProgressSource = Callable[[Progress], RunProgress]


def progress_bar(label: str) -> AbstractContextManager[OnProgress]:
    """A bar for the notebook or terminal that this process runs in; none without either."""
    if _in_notebook():
        return notebook_bar(label)
    if sys.stderr.isatty():
        return terminal_bar(label, PlainConsole(stderr=True))
    return nullcontext(ignore_progress)


@contextmanager
def terminal_bar(
    label: str, console: Console, run_progress: RunProgressSource | None = None
) -> Iterator[OnProgress]:
    """Yields a callback that shows a line with a bar and, with `run_progress`, one below for the
    whole run; both are erased on exit."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None, table_column=Column(ratio=1)),
        TextColumn("{task.fields[amount]}", markup=False),
        TextColumn("{task.fields[left]}", markup=False),
    )
    with Bars(*columns, console=console, transient=True, expand=True) as bars:
        yield _TerminalBar(label, bars, run_progress)


@contextmanager
def notebook_bar(label: str) -> Iterator[OnProgress]:
    """Yields a callback that shows a bar in plain text, which any notebook shows without widgets
    and without escaping; it is erased on exit."""
    from IPython.display import display

    handle = display({"text/plain": ""}, raw=True, display_id=True)
    speed, drawn = Speed(), 0.0

    def draw(progress: Progress) -> None:
        nonlocal drawn
        amount_done = amount_text(progress, speed(progress))
        if time.monotonic() - drawn >= _REDRAW_SECONDS or progress.done == progress.total:
            drawn = time.monotonic()
            filled = _NOTEBOOK_WIDTH * progress.done // max(1, progress.total)
            cells = "█" * filled + "░" * (_NOTEBOOK_WIDTH - filled)
            text = f"{progress.label or label} {cells} {amount_done}"
            handle.update({"text/plain": text}, raw=True)

    try:
        yield draw
    finally:
        handle.update({"text/plain": ""}, raw=True)


class _TerminalBar:
    """One bar at a time: a report with a new label replaces the bar."""

    def __init__(self, label: str, bars: Bars, run_progress: RunProgressSource | None) -> None:
        self.label, self.bars, self.run_progress = label, bars, run_progress
        self.current_label: str | None = None
        self.task = TaskID(0)
        self.run_task: TaskID | None = None
        self.speed = Speed()

    def __call__(self, progress: Progress) -> None:
        label = shorten(progress.label or self.label, _LABEL_WIDTH)
        if label != self.current_label:
            for task in (self.task, self.run_task) if self.current_label is not None else ():
                if task is not None:
                    self.bars.remove_task(task)
            self.current_label, self.speed = label, Speed()
            self.task = self.bars.add_task(label, total=progress.total, amount="", left="")
            if self.run_progress is not None:
                self.run_task = self.bars.add_task("in all", total=1.0, amount="", left="")
        amount_done = amount_text(progress, self.speed(progress))
        seconds = self.speed.seconds_left(progress)
        left = "" if seconds is None else str(timedelta(seconds=ceil(seconds)))
        self._set(self.task, progress.done, max(1, progress.total), amount_done, left)
        if self.run_progress is not None and self.run_task is not None:
            run = self.run_progress(progress)
            self._set(self.run_task, run.share, 1.0, run.text, time_left_text(run.seconds_left))

    def _set(self, task: TaskID, done: float, total: float, amount_done: str, left: str) -> None:
        self.bars.update(task, completed=done, total=total, amount=amount_done, left=left)


def amount_text(progress: Progress, speed: float) -> str:
    """The text next to a bar: the amount done; for bytes and training also the speed per second,
    unless it is 0, and for training the loss."""
    if progress.unit == "bytes":
        text = f"{bytes_text(progress.done)} of {bytes_text(progress.total)}"
        return f"{text} {bytes_text(speed)}/s" if speed else text
    if progress.loss is not None:
        text = f"{progress.done}/{progress.total}"
        text += f" loss {progress.loss:.4f}" if isfinite(progress.loss) else " no finite loss"
        return f"{text} {speed:,.0f} tokens/s" if speed else text
    return f"{progress.done:,}/{progress.total:,} {progress.unit}"


def time_left_text(seconds: float) -> str:
    """Such as "~3 min left"."""
    return f"~{duration_text(seconds)} left"


class Speed:
    """Tokens (or units, in reports without tokens) per second since the first report."""

    def __init__(self) -> None:
        self.start: tuple[float, int, int] | None = None

    def __call__(self, progress: Progress) -> float:
        counted = progress.done if progress.tokens is None else progress.tokens
        now = time.monotonic()
        if self.start is None or counted < self.start[1]:
            self.start = now, counted, progress.done
        return (counted - self.start[1]) / max(now - self.start[0], 1e-9)

    def seconds_left(self, progress: Progress) -> float | None:
        """Estimate from the speed so far; None before anything was done."""
        if self.start is None or progress.done <= self.start[2]:
            return None
        elapsed = time.monotonic() - self.start[0]
        return elapsed / (progress.done - self.start[2]) * (progress.total - progress.done)


def _in_notebook() -> bool:
    """Whether this runs in Jupyter, Colab or Databricks, whose shells are subclasses of one."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return any(kind.__name__ == "ZMQInteractiveShell" for kind in type(shell).__mro__)
