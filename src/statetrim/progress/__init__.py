"""How far a run is: the one thing that every function which takes long reports."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

Unit = Literal["bytes", "layers", "samples", "settings", "steps", "tasks", "tokens"]


@dataclass(frozen=True)
class Progress:
    """`done` of `total`, in `unit`; `label` names the part of the run that is counted.

    A training step also says its `loss`, and how many `tokens` were read by then.
    """

    done: int
    total: int
    unit: Unit
    label: str = ""
    tokens: int | None = None
    loss: float | None = None


OnProgress = Callable[[Progress], None]
ShowProgress = OnProgress | bool
"""As functions take it: True for a bar where a person watches, False for none, or a function."""
Advance = Callable[[int], None]
"""Called with how much was just done; `counter` adds it up."""


def ignore_progress(progress: Progress) -> None:
    """Report to nobody."""


def is_rank_zero() -> bool:
    """Whether this process of a torchrun launch is the one that speaks; joins nothing."""
    return int(os.environ.get("RANK", "0")) == 0


@contextmanager
def progress_reporter(progress: ShowProgress, label: str) -> Iterator[OnProgress]:
    """Yields what a long run reports to; `label` stands before parts that have none of their own.

    True is a bar in a terminal or a notebook, and nothing where standard error goes to a file.
    """
    if callable(progress):
        yield progress
    elif progress and is_rank_zero():
        from .bar import progress_bar  # rich takes a while to import

        with progress_bar(label) as report:
            yield report
    else:
        yield ignore_progress


def counter(report: OnProgress, total: int, unit: Unit) -> Advance:
    """Reports the sum of what it is called with, out of `total`."""
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        report(Progress(done, total, unit))

    return advance
