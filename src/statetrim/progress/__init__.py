"""Progress reports of long-running functions."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

Unit = Literal["bytes", "layers", "samples", "settings", "steps", "tasks", "tokens"]


@dataclass(frozen=True)
class Progress:
    """`done` of `total`, in `unit`; `label` names the step of the run that is counted.

    Training also reports its `loss`, and the number of `tokens` so far.
    """

    done: int
    total: int
    unit: Unit
    label: str = ""
    tokens: int | None = None
    loss: float | None = None


OnProgress = Callable[[Progress], None]
ShowProgress = OnProgress | bool
"""Argument `progress` of functions: True for a bar, False for none, or a callback."""
Advance = Callable[[int], None]
"""Called with the amount done since the last call; see `counter`."""


def ignore_progress(progress: Progress) -> None:
    """A callback that does nothing."""


def is_rank_zero() -> bool:
    """Whether this process is rank 0 (or not under torchrun); creates no process group."""
    return int(os.environ.get("RANK", "0")) == 0


@contextmanager
def progress_reporter(progress: ShowProgress, label: str) -> Iterator[OnProgress]:
    """Yields the callback that a long run reports to: `progress` itself if it is one. True shows a
    bar in a terminal or a notebook, in rank 0 only; `label` is its text for reports that have
    none."""
    if callable(progress):
        yield progress
    elif progress and is_rank_zero():
        from .bar import progress_bar  # rich takes a while to import

        with progress_bar(label) as report:
            yield report
    else:
        yield ignore_progress


def counter(report: OnProgress, total: int, unit: Unit) -> Advance:
    """A function that adds up the amounts it is called with, and reports their sum of `total`."""
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        report(Progress(done, total, unit))

    return advance
