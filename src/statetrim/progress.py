"""Progress of long-running functions, and the bar that shows it."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, Literal

from .maths.formatting import shorten

Unit = Literal["bytes", "layers", "samples", "settings", "steps", "tokens"]
_MAX_LABEL = 28  # characters; figures and bar take what is left of the line


@dataclass(frozen=True)
class Progress:
    """`done` of `total`, in `unit`; `label` names the step of the run that is counted.

    Training also reports its `loss`.
    """

    done: int
    total: int
    unit: Unit
    label: str = ""
    loss: float | None = None

    @property
    def loss_text(self) -> str:
        """The loss for people; empty if there is none."""
        if self.loss is None:
            return ""
        return f"loss {self.loss:.4f}" if isfinite(self.loss) else "no finite loss"


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


def is_watched() -> bool:
    """Whether somebody sees a bar of this process: in a terminal or a notebook, of rank 0 only."""
    return is_rank_zero() and (sys.stderr.isatty() or _is_notebook())


def _is_notebook() -> bool:
    """Whether a notebook's kernel runs this process; libraries import IPython elsewhere, too."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


@contextmanager
def progress_reporter(progress: ShowProgress, label: str) -> Iterator[OnProgress]:
    """Yields the callback that a long run reports to: `progress` itself if it is one. True shows a
    bar in a terminal or a notebook, in rank 0 only. Reports without a label get `label`."""
    if callable(progress):
        yield lambda report: progress(replace(report, label=report.label or label))
    elif progress and is_watched():
        bar = _Bar(label)
        try:
            yield bar
        finally:
            bar.close()
    else:
        yield ignore_progress


class _Bar:
    """One bar at a time, which `close` erases: a report with another label replaces it."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.bar: Any = None  # of tqdm

    def __call__(self, progress: Progress) -> None:
        label = shorten(progress.label or self.label, _MAX_LABEL)
        if self.bar is None or (self.bar.desc, self.bar.total) != (label, progress.total):
            self.close()
            self.bar = _new_bar(label, progress)
        self.bar.set_postfix_str(progress.loss_text, refresh=False)
        self.bar.update(progress.done - self.bar.n)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


def _new_bar(label: str, progress: Progress) -> Any:
    from tqdm.auto import tqdm  # takes a while

    return tqdm(
        desc=label,
        total=progress.total,
        initial=progress.done,  # so that a run that resumes extrapolates from what it does itself
        unit="B" if progress.unit == "bytes" else f" {progress.unit}",
        unit_scale=progress.unit in ("bytes", "tokens"),
        postfix=progress.loss_text,
        disable=False,  # also if TQDM_DISABLE silences libraries
        leave=False,
        dynamic_ncols=True,
    )


def counter(report: OnProgress, total: int, unit: Unit) -> Advance:
    """A function that adds up the amounts it is called with, and reports their sum of `total`."""
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        report(Progress(done, total, unit))

    return advance
