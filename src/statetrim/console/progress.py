"""A bar for a terminal; for a log, a line now and then."""

import time
from contextlib import AbstractContextManager, nullcontext

from ..progress import OnProgress, Progress, is_lead
from ..progress.bar import Speed, terminal_bar
from . import terminal


def shown(label: str = "") -> AbstractContextManager[OnProgress]:
    """Gives what a long run reports to; `label` stands before parts that have none of their own.

    Of several processes only the first shows anything.
    """
    if terminal.err.is_terminal and is_lead():
        return terminal_bar(label, terminal.err)
    return nullcontext(_Lines(label))


class _Lines:
    """A line every ten seconds, none for what is done at once; and one for every task that is
    done, every setting that begins, and the last step of a training."""

    patience = 10.0  # seconds

    def __init__(self, label: str) -> None:
        self.label, self.told = label, time.monotonic()
        self.speed = Speed()
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
