"""Figures with confidence intervals, from the rows that the scripts of this folder wrote.

Comparisons are paired (by window, sequence, head or round) within a sample. Of several samples the
mean is shown, with bounds that contain all their 95 % intervals, so that a verdict needs every
sample.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Literal

import torch

sys.path.append(str(Path(__file__).parents[1]))
from runner import RESULTS as RESULTS
from runner import Row as Row
from runner import Rows as Rows
from runner import table as table
from statetrim.maths.paired import Interval, Pairs, difference_interval

Verdict = Literal["confirmed here", "not confirmed", "not seen here", "needs its scale"]


def interval(before: Sequence[float], after: Sequence[float]) -> Interval:
    """95 % confidence interval of the mean of after - before, paired."""
    return _interval(tuple(before), tuple(after))


@cache
def _interval(*samples: tuple[float, ...]) -> Interval:
    pair = [torch.tensor(values, dtype=torch.float64) for values in samples]
    return difference_interval([Pairs(*pair)])


def joined(intervals: Sequence[Interval]) -> Interval:
    """The mean of the estimates, with bounds that contain every interval."""
    return Interval(
        fmean(sample.estimate for sample in intervals),
        min(sample.low for sample in intervals),
        max(sample.high for sample in intervals),
    )


def change(rows: list[Row], other: list[Row], measure: str = "nll") -> Interval:
    """`rows` - `other` by sample; a single sample is compared with each of the other side."""
    count = max(len(rows), len(other))
    pairs = zip(_filled(rows, count), _filled(other, count), strict=True)
    return joined([interval(other_row[measure], row[measure]) for row, other_row in pairs])


def _filled(rows: list[Row], count: int) -> list[Row]:
    if len(rows) not in (1, count):
        raise LookupError(f"{len(rows)} samples cannot be paired with {count}")
    return rows * count if len(rows) == 1 else rows


def perplexity(rows: list[Row]) -> float:
    return math.exp(fmean(fmean(row["nll"]) for row in rows))


def mean(rows: list[Row], measure: str) -> float:
    return fmean(fmean(row[measure]) for row in rows)


def ratio(row: Row, other: Row, measure: str = "seconds") -> Interval:
    """Speedup of `row` over `other`, mean of rounds."""
    quotients = [
        other_value / own_value
        for own_value, other_value in zip(row[measure], other[measure], strict=True)
    ]
    return interval([0.0] * len(quotients), quotients)


def verdict(gap: Interval, expected: Literal["lower", "higher"], than: float = 0.0) -> Verdict:
    """Confirmed if the whole interval is on the expected side of `than`, not seen here if it is on
    the other side, else not confirmed."""
    below, above = gap.high < than, gap.low > than
    if below or above:
        return "confirmed here" if below == (expected == "lower") else "not seen here"
    return "not confirmed"


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict of a claim with several parts: the least favourable of theirs."""
    order: tuple[Verdict, ...] = ("not seen here", "not confirmed", "needs its scale")
    return next((candidate for candidate in order if candidate in verdicts), "confirmed here")


def nats(gap: Interval, digits: int = 3) -> str:
    low, high = f"{gap.low:+.{digits}f}", f"{gap.high:+.{digits}f}"
    return f"{gap.estimate:+.{digits}f} ({low}, {high})"


def percent(gap: Interval) -> str:
    """A change of NLL as a change of perplexity."""
    middle, low, high = (100 * math.expm1(x) for x in (gap.estimate, gap.low, gap.high))
    return f"{middle:+.1f} % ({low:+.1f}, {high:+.1f})"


def points(gap: Interval) -> str:
    middle, low, high = (100 * x for x in (gap.estimate, gap.low, gap.high))
    return f"{middle:+.1f} points ({low:+.1f}, {high:+.1f})"


def share(value: Interval) -> str:
    return f"{value.estimate:.2f} ({value.low:.2f}, {value.high:.2f})"


def times(gap: Interval) -> str:
    return f"{gap.estimate:.2f}x ({gap.low:.2f}, {gap.high:.2f})"


def compared(
    opening: str,
    gaps: Mapping[str, Interval],
    expected: Literal["lower", "higher"],
    than: float = 0.0,
    show: Callable[[Interval], str] = nats,
) -> tuple[str, Verdict]:
    """Text and verdict of a claim with several parts: every figure, and the worst verdict."""
    shown = "; ".join(f"{label} {show(gap)}" for label, gap in gaps.items())
    return opening + shown, worst([verdict(gap, expected, than) for gap in gaps.values()])


def closest_compared(
    opening: str,
    cases: Mapping[str, Mapping[str, Interval]],
    expected: Literal["lower", "higher"],
    show: Callable[[Interval], str] = nats,
) -> tuple[str, Verdict]:
    """Text and verdict of a claim about several cases: of each the part that is nearest to failing,
    and the worst verdict."""
    verdicts = [compared("", gaps, expected)[1] for gaps in cases.values()]
    texts = [
        compared(f"{case}: ", _closest(gaps, expected), expected, show=show)[0]
        for case, gaps in cases.items()
    ]
    return opening + "; ".join(texts), worst(verdicts)


def _closest(
    gaps: Mapping[str, Interval], expected: Literal["lower", "higher"]
) -> dict[str, Interval]:
    worst_end = {x: gap.high if expected == "lower" else -gap.low for x, gap in gaps.items()}
    label = max(gaps, key=lambda name: worst_end[name])
    return {label: gaps[label]}
