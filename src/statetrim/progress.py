"""How far a run is: the one thing that every function which takes long reports."""

from collections.abc import Callable
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
Advance = Callable[[int], None]
"""Called with how much was just done; `counter` adds it up."""


def ignore(progress: Progress) -> None:
    """Report to nobody."""


def counter(report: OnProgress, total: int, unit: Unit) -> Advance:
    """Reports the sum of what it is called with, out of `total`."""
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        report(Progress(done, total, unit))

    return advance
