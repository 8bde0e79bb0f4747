"""The units of metrics: how a value follows from samples, a loss from values, and their text.

A new unit is an entry of `UNITS`, with methods of its own where it differs from a plain mean.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, expm1
from typing import Literal

from ..maths.paired import TAIL, Interval, Pairs, difference_interval, zero_event_bound

_MAX_LOG = 690.0  # exp of more is beyond the numbers that artifacts may hold


@dataclass(frozen=True)
class Unit:
    """The unit of a metric whose value is the mean of its samples.

    A change of the metric is given in the unit of losses, such as percentage points for shares;
    it is positive where the value rises.
    """

    name: str  # as stored in scores
    suffix: str  # of a loss
    digits: int  # of a loss that is shown with its margin
    groups: tuple[str, ...]
    """Groups of tasks whose limits and rules may apply to metrics of this unit; the first is that
    of a task which no group names."""
    loss_title: str  # what losses are, for charts
    verdict_digits: int = 1  # of a loss in a verdict
    guess: Literal["share", "vocabulary"] | None = None
    """What guessing scores: the task's share of right answers, or the size of the vocabulary. None:
    no value shows that a model only guesses."""
    sample_sign: float = 1.0  # -1 for samples that fall where the value rises

    def value(self, samples: Sequence[float], weights: Sequence[float] | None = None) -> float:
        """The metric over all samples."""
        return sum(samples) / len(samples)

    def text(self, value: float) -> str:
        """A value, for people."""
        return f"{value:.4f}"

    def loss_text(self, loss: float) -> str:
        """A loss with its unit, for verdicts; negative for a gain."""
        rounded = round(loss, self.verdict_digits) + 0.0  # + 0.0 avoids -0.0
        return f"{rounded:,.{self.verdict_digits}f}{self.suffix}"

    def change(self, groups: Sequence[Pairs], tail: float = TAIL) -> Interval:
        """The change by paired samples, a mean over `groups`, with its interval."""
        return difference_interval(groups, tail)


class _Share(Unit):
    """Shares from 0 to 1, shown in percent; losses are in percentage points."""

    def text(self, value: float) -> str:
        return f"{100 * value:.1f}%"

    def change(self, groups: Sequence[Pairs], tail: float = TAIL) -> Interval:
        """If no sample changed, the interval is bounded by the number of samples, because equal
        values have no spread."""
        if any(bool((pairs.before != pairs.after).any()) for pairs in groups):
            change = super().change(groups, tail)
        else:
            bound = zero_event_bound(sum(len(pairs.before) for pairs in groups), tail)
            change = Interval(0.0, -bound, bound)
        return change.transformed(lambda x: 100 * min(1.0, max(-1.0, x)))


class _Perplexity(Unit):
    """Perplexities, from log-likelihoods of documents; losses are in percent of the original."""

    def value(self, samples: Sequence[float], weights: Sequence[float] | None = None) -> float:
        """The perplexity per unit of `weights` (words), 1 per sample by default."""
        return exp(min(-sum(samples) / sum(weights or [len(samples)]), _MAX_LOG))

    def text(self, value: float) -> str:
        return f"{value:,.2f}" if value < 1e7 else f"{value:.2e}"

    def change(self, groups: Sequence[Pairs], tail: float = TAIL) -> Interval:
        return super().change(groups, tail).transformed(lambda x: 100 * expm1(min(x, _MAX_LOG)))


PERPLEXITY = _Perplexity(
    "perplexity",
    "%",
    digits=2,
    groups=("perplexity",),
    loss_title="rise of perplexity, % of the original's",
    guess="vocabulary",
    sample_sign=-1.0,
)
SHARE = _Share(
    "share",
    " points",
    digits=2,
    groups=("accuracy", "recall"),
    loss_title="percentage points lost",
    guess="share",
)
NATS = Unit(
    "nats",
    " nats",
    digits=4,
    groups=("agreement",),
    loss_title="KL from the original, nats per token",
    verdict_digits=4,
)
UNITS = {unit.name: unit for unit in (SHARE, PERPLEXITY, NATS)}
"""All units by the name that scores store."""
