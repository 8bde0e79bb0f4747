"""Progress of long runs: a bar in a terminal, lines at intervals in a pipe."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from ..options import OptionsFunction
from ..progress import OnProgress, Progress, is_rank_zero, progress_reporter
from . import terminal

_LINE_SECONDS = 10.0  # between two lines

Subject = TypeVar("Subject")
Result = TypeVar("Result")


def run_with_progress(
    function: OptionsFunction[Subject, ..., Any, Result],
    subject: Subject,
    options: Any,
    **changes: Any,
) -> Result:
    """Run a function that takes options, with `changes` of them, and show its progress."""
    with show_progress() as progress:
        return function.run(subject, replace(options, progress=progress, **changes))


@contextmanager
def show_progress(label: str = "") -> Iterator[OnProgress]:
    """Yields the function to which a long run reports: in a terminal it shows a bar, elsewhere
    lines at intervals, with --quiet neither; of rank 0 only."""
    shows_lines = is_rank_zero() and not sys.stderr.isatty()
    last_written = time.monotonic()
    with progress_reporter(not terminal.err().quiet, label) as show:

        def report(progress: Progress) -> None:
            nonlocal last_written
            show(progress)
            if shows_lines and time.monotonic() - last_written >= _LINE_SECONDS:
                last_written = time.monotonic()
                percent = 100 * progress.done // max(1, progress.total)
                amount = f"{progress.done:,} of {progress.total:,} {progress.unit}, {percent}%"
                loss = f", {progress.loss_text}" if progress.loss_text else ""
                terminal.note(f"{progress.label or label}: {amount}{loss}")

        yield report
