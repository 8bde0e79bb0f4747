"""Progress of long runs: a bar in a terminal; lines at intervals in a pipe and in the log."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from math import isfinite
from typing import Any, TypeVar

from ..options import OptionsFunction
from ..progress import OnProgress, Progress, is_rank_zero
from ..progress.bar import RunProgressSource, Speed, terminal_bar, time_left_text
from . import terminal

Subject = TypeVar("Subject")
Result = TypeVar("Result")


def run_with_progress(
    function: OptionsFunction[Subject, ..., Any, Result],
    subject: Subject,
    options: Any,
    label: str = "",
    **changes: Any,
) -> Result:
    """Run a function that takes options, with `changes` of them, and show its progress."""
    with show_progress(label) as progress:
        return function.run(subject, replace(options, progress=progress, **changes))


def show_progress(
    label: str = "", overall: RunProgressSource | None = None
) -> AbstractContextManager[OnProgress]:
    """A context manager that yields the function to which a long run reports its Progress.

    In a terminal it shows a bar, else (and with --quiet only in the log) lines at intervals; the
    log gets lines in both cases. Only rank 0 shows anything. `label` is shown for a Progress
    without a label. `overall` computes the progress of the whole pipeline of which this run is one
    step.
    """
    if terminal.err().is_terminal and not terminal.err().quiet and is_rank_zero():
        return _bar_and_log(label, overall)
    return nullcontext(_ProgressLines(label, overall, terminal.note))


@contextmanager
def _bar_and_log(label: str, overall: RunProgressSource | None) -> Iterator[OnProgress]:
    log_lines = _ProgressLines(label, overall, terminal.append_to_log)
    with terminal_bar(label, terminal.err(), overall) as show:

        def report(progress: Progress) -> None:
            show(progress)
            log_lines(progress)

        yield report


class _ProgressLines:
    """Writes a line when `interval` has passed since the last one, and for every finished task,
    every setting that starts, and the last step of a training."""

    interval = 10.0  # seconds

    def __init__(
        self, label: str, overall: RunProgressSource | None, write: Callable[[str], None]
    ) -> None:
        self.label, self.overall, self.write = label, overall, write
        self.last_written = time.monotonic()
        self.speed = Speed()
        self.finished_tasks: set[str] = set()

    def __call__(self, progress: Progress) -> None:
        speed = self.speed(progress)
        run = self.overall(progress) if self.overall else None
        if self._is_due(progress):
            self.last_written = time.monotonic()
            overall_left = f"; in all {time_left_text(run.seconds_left)}" if run else ""
            self.write(self._line(progress, speed) + overall_left)
            if progress.unit == "tasks":
                self.finished_tasks.add(progress.label)

    def _is_due(self, progress: Progress) -> bool:
        """Whether this report gets a line; only in rank 0."""
        if not is_rank_zero():
            return False
        if progress.unit == "settings":
            return True
        if progress.unit == "tasks":
            return progress.label not in self.finished_tasks
        if progress.unit == "samples" and progress.done == progress.total:
            return False  # the line of the finished task follows
        last = progress.loss is not None and progress.done == progress.total
        return last or time.monotonic() - self.last_written >= self.interval

    def _line(self, progress: Progress, speed: float) -> str:
        label = progress.label or self.label
        if progress.unit == "tasks":
            return f"{label} done"
        if progress.unit == "settings":
            return f"{label} ({progress.done} of {progress.total} done)"
        if progress.loss is not None and progress.tokens is not None:
            loss = f"loss {progress.loss:.4f}" if isfinite(progress.loss) else "no finite loss"
            line = f"{label}: step {progress.done} of {progress.total}, {loss}"
            seconds_left = self.speed.seconds_left(progress)
            line += f", {speed:,.0f} tokens/s" if speed else ""
            return line + (f", {seconds_left:,.0f} s left" if seconds_left else "")
        percent = 100 * progress.done // max(1, progress.total)
        return f"{label}: {progress.done:,} of {progress.total:,} {progress.unit}, {percent}%"
