"""Paired statistics of two models on the same samples: intervals of differences, p-values.

Pure functions on float64 tensors. Samples are documents, questions or sequences, never tokens,
because the tokens of one document are not independent.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import comb, exp, isnan, lgamma, log, log1p, pi, sqrt, tan
from statistics import NormalDist

import torch
from torch import Tensor

from ..errors import StatetrimError

_CHUNK = 2**22  # resampled indices held at a time
CONFIDENCE_LEVEL = 0.95  # of all intervals and tests
UNBOUNDED_MARGIN = 1e3  # stands for infinity, which JSON cannot store
_TAIL = (1 - CONFIDENCE_LEVEL) / 2  # on each side of an interval
SMALL_SAMPLE = 8  # up to this many samples a bootstrap interval is too narrow


@dataclass(frozen=True)
class Interval:
    """An estimate and the bounds of its confidence interval. Raises StatetrimError for nan, because
    a comparison with it would pass every limit."""

    estimate: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if any(map(isnan, (self.estimate, self.low, self.high))):
            raise StatetrimError("the difference of two models on these samples is not a number")

    @property
    def margin(self) -> float:
        """Half of the width."""
        return (self.high - self.low) / 2

    def __neg__(self) -> "Interval":
        return Interval(0.0 - self.estimate, 0.0 - self.high, 0.0 - self.low)  # no -0.0

    def transformed(self, function: Callable[[float], float]) -> "Interval":
        """The interval with `function` applied to estimate and bounds; it must be nondecreasing."""
        return Interval(function(self.estimate), function(self.low), function(self.high))


@dataclass(frozen=True, eq=False)
class Pairs:
    """One metric of two models on the same samples.

    The difference is the mean of `after - before`; with `weights` (words per document) it is the
    sum of differences over the sum of weights, as for perplexity.
    """

    before: Tensor  # float64 [samples]
    after: Tensor  # float64 [samples]
    weights: Tensor | None = None  # float64 [samples]

    @staticmethod
    def of(
        before: Sequence[float], after: Sequence[float], weights: Sequence[float] | None = None
    ) -> "Pairs":
        """The pairs of plain numbers."""

        def tensor(values: Sequence[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float64)

        return Pairs(tensor(before), tensor(after), None if weights is None else tensor(weights))

    @property
    def difference(self) -> float:
        """Mean of `after - before`, or its sum over the sum of `weights`."""
        total = self.weights.sum() if self.weights is not None else len(self.before)
        return float((self.after - self.before).sum() / total)


def mcnemar(before: Tensor, after: Tensor) -> float:
    """Two-sided mid-p-value for right/wrong answers of two models to the same questions.

    Only questions that exactly one of the models answers right count; under the null hypothesis
    each is a fair coin. The mid-p is neither conservative nor liberal where few answers differ.
    """
    only_before = int(((before > 0.5) & (after <= 0.5)).sum())
    only_after = int(((after > 0.5) & (before <= 0.5)).sum())
    flips = only_before + only_after
    fewer = min(only_before, only_after)
    if only_before == only_after:
        return 1.0 - (comb(flips, fewer) / 2 ** (flips + 1) if flips else 0.0)
    ways = tail = 1
    for k in range(fewer):
        ways = ways * (flips - k) // (k + 1)  # ways to choose k + 1 of the flips
        tail += ways
    return float((2 * tail - ways) / 2**flips)


def difference_interval(
    groups: Sequence[Pairs], *, resamples: int = 2000, seed: int = 0
) -> Interval:
    """Bootstrap interval of the difference, averaged over `groups` that are resampled separately.

    The percentiles are widened for small samples as in Hesterberg (2015). With at most
    `SMALL_SAMPLE` samples the interval is at least that of Student's t in the worst group.
    """
    generator = torch.Generator().manual_seed(seed)
    resampled = torch.stack(
        [_resampled_differences(pairs, resamples, generator) for pairs in groups]
    ).mean(0)
    fewest = min(len(pairs.before) for pairs in groups)
    tail = _widened_tail(fewest)
    bounds = torch.quantile(resampled, torch.tensor([tail, 1 - tail], dtype=torch.float64))
    estimate = sum(pairs.difference for pairs in groups) / len(groups)
    low, high = float(bounds[0]), float(bounds[1])
    if fewest <= SMALL_SAMPLE:
        margin = max(_student_margin(pairs) for pairs in groups)
        low, high = min(low, estimate - margin), max(high, estimate + margin)
    return Interval(estimate, low, high)


def is_above_chance(samples: Sequence[float], chance: float) -> bool:
    """Whether the mean of the samples, shares from 0 to 1, is significantly above `chance`.

    For samples of 0 and 1 by the exact binomial tail, else by the t interval of their mean. Both
    use the tail of a two-sided interval, 2.5 %.
    """
    count, right = len(samples), sum(samples)
    if set(samples) <= {0, 1}:
        return right > 0 and _binomial_tail(int(right), count, chance) < _TAIL
    if count < 2:
        return False
    mean = right / count
    square = sum((value - mean) ** 2 for value in samples) / (count - 1)
    return mean - student_t_quantile(count - 1) * sqrt(square / count) > chance


def _binomial_tail(right: int, count: int, chance: float) -> float:
    """Probability of at least `right` right answers out of `count` by guessing."""
    if not 0.0 < chance < 1.0:
        return float(chance >= 1.0)
    return sum(
        exp(
            lgamma(count + 1)
            - lgamma(k + 1)
            - lgamma(count - k + 1)
            + k * log(chance)
            + (count - k) * log1p(-chance)
        )
        for k in range(right, count + 1)
    )


def zero_event_bound(samples: int) -> float:
    """The one-sided upper confidence bound, a fraction, of the rate of an event that was never seen
    in `samples` trials."""
    return 1 - float((1 - CONFIDENCE_LEVEL) ** (1 / samples))


def student_t_quantile(degrees_of_freedom: int) -> float:
    """The quantile of Student's t with probability 2.5 % above it.

    Exact for one and two degrees of freedom, else by the Cornish-Fisher expansion.
    """
    if degrees_of_freedom == 1:
        return tan(pi * (0.5 - _TAIL))
    if degrees_of_freedom == 2:
        return CONFIDENCE_LEVEL / sqrt(2 * _TAIL * (1 - _TAIL))
    z = NormalDist().inv_cdf(1 - _TAIL)
    return z + sum(
        (
            (z**3 + z) / (4 * degrees_of_freedom),
            (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees_of_freedom**2),
            (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * degrees_of_freedom**3),
            (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z)
            / (92160 * degrees_of_freedom**4),
        )
    )


def _student_margin(pairs: Pairs) -> float:
    """Half of the width of the t interval of the difference."""
    count = len(pairs.before)
    if count < 2:
        return UNBOUNDED_MARGIN
    weights = torch.ones_like(pairs.before) if pairs.weights is None else pairs.weights
    residuals = pairs.after - pairs.before - pairs.difference * weights
    spread = float(residuals.std()) / float(weights.mean())
    return student_t_quantile(count - 1) * spread / sqrt(count)


def _resampled_differences(pairs: Pairs, resamples: int, generator: torch.Generator) -> Tensor:
    """The difference in each of `resamples` draws with replacement, float64 [resamples]."""
    difference, count = pairs.after - pairs.before, len(pairs.before)
    chunks = []
    for start in range(0, resamples, max(1, _CHUNK // count)):
        rows = min(max(1, _CHUNK // count), resamples - start)
        index = torch.randint(count, (rows, count), generator=generator)
        total = difference[index].sum(-1)
        chunks.append(total / (count if pairs.weights is None else pairs.weights[index].sum(-1)))
    return torch.cat(chunks)


def _widened_tail(samples: int) -> float:
    """The tail probability whose bootstrap percentile gives an interval as wide as Student's t."""
    if samples < 2:
        return 0.0
    z, degrees_of_freedom = NormalDist().inv_cdf(_TAIL), samples - 1
    t = (
        z
        + (z**3 + z) / (4 * degrees_of_freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees_of_freedom**2)
    )
    return NormalDist().cdf(t * sqrt(samples / degrees_of_freedom))
