"""A bar for a terminal; for a log, a line now and then."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from ..maths.formatting import size
from ..progress import OnProgress, Progress
from ..runtime.processes import is_lead
from . import terminal


@contextmanager
def shown(label: str = "") -> Iterator[OnProgress]:
    """Yields what a long run reports to; `label` stands before parts that have none of their own.

    Of several processes only the first shows anything.
    """
    if not terminal.err.is_terminal:
        yield _Lines(label)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[amount]}"))
    with Bars(
        *columns, TimeRemainingColumn(), console=terminal.err, transient=True, disable=not is_lead()
    ) as bars:
        yield _Bar(label, bars)


class _Bar:
    """One bar at a time: a new part takes the place of the one before."""

    def __init__(self, label: str, bars: Bars) -> None:
        self.label, self.bars = label, bars
        self.part: str | None = None
        self.task = TaskID(0)
        self.speed = _Speed()

    def __call__(self, progress: Progress) -> None:
        part = progress.label or self.label
        if part != self.part:
            if self.part is not None:
                self.bars.remove_task(self.task)
            self.part, self.speed = part, _Speed()
            self.task = self.bars.add_task(part, total=progress.total, amount="")
        speed = self.speed(progress)
        if progress.unit == "bytes":
            amount = f"{size(progress.done)} of {size(progress.total)} {size(speed)}/s"
        elif progress.loss is not None:
            amount = f"{progress.done}/{progress.total} loss {progress.loss:.4f}"
            amount += f" {speed:,.0f} tokens/s"
        else:
            amount = f"{progress.done:,}/{progress.total:,} {progress.unit}"
        self.bars.update(self.task, completed=progress.done, total=progress.total, amount=amount)


class _Lines:
    """A line every ten seconds, none for what is done at once; and one for every task that is
    done, every setting that begins, and the last step of a training."""

    patience = 10.0  # seconds

    def __init__(self, label: str) -> None:
        self.label, self.told = label, time.monotonic()
        self.speed = _Speed()
        self.finished: set[str] = set()

    def __call__(self, progress: Progress) -> None:
        speed = self.speed(progress)
        if self._is_due(progress):
            self.told = time.monotonic()
            terminal.note(self._line(progress, speed))

    def _is_due(self, progress: Progress) -> bool:
        if not is_lead():
            return False
        if progress.unit == "settings":
            return True
        if progress.unit == "tasks":
            new = progress.label not in self.finished
            self.finished.add(progress.label)
            return new
        last = progress.loss is not None and progress.done == progress.total
        return last or time.monotonic() - self.told >= self.patience

    def _line(self, progress: Progress, speed: float) -> str:
        label = progress.label or self.label
        if progress.unit == "tasks":
            return f"{label} done"
        if progress.unit == "settings":
            return f"{label} ({progress.done} of {progress.total} done)"
        if progress.loss is not None and progress.tokens is not None:
            left = progress.tokens * (progress.total / progress.done - 1)
            time_left = f", {left / speed:,.0f} s left" if speed and left else ""
            return (
                f"{label}: step {progress.done} of {progress.total}, loss {progress.loss:.4f}, "
                f"{speed:,.0f} tokens/s{time_left}"
            )
        share = 100 * progress.done // max(1, progress.total)
        return f"{label}: {progress.done:,} of {progress.total:,} {progress.unit}, {share}%"


class _Speed:
    """What is done a second, since the first report; tokens, where they are told."""

    def __init__(self) -> None:
        self.began: tuple[float, int] | None = None

    def __call__(self, progress: Progress) -> float:
        done = progress.done if progress.tokens is None else progress.tokens
        now = time.monotonic()
        if self.began is None or done < self.began[1]:
            self.began = now, done
        return (done - self.began[1]) / max(now - self.began[0], 1e-9)
