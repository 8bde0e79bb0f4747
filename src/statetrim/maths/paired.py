"""Paired statistics of two models on the same samples: intervals of differences, p-values.

Pure functions on float64 tensors. Samples are documents, questions or sequences, never tokens,
because the tokens of one document are not independent.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isnan, sqrt

import torch
from scipy import special
from torch import Tensor

from ..errors import StatetrimError

CONFIDENCE_LEVEL = 0.95  # of all intervals and tests
UNBOUNDED_MARGIN = 1e3  # stands for infinity, which JSON cannot store
TAIL = (1 - CONFIDENCE_LEVEL) / 2  # on each side of an interval


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
    flips, fewer = only_before + only_after, min(only_before, only_after)
    at_most = float(special.bdtr(fewer, flips, 0.5))
    fewer_still = float(special.bdtr(fewer - 1, flips, 0.5)) if fewer else 0.0
    if only_before == only_after:
        return 1.0 - (at_most - fewer_still) / 2 if flips else 1.0
    return at_most + fewer_still


def difference_interval(groups: Sequence[Pairs], tail: float = TAIL) -> Interval:
    """Student's t interval of the difference, averaged over `groups` that are sampled separately,
    with the probability `tail` on each side; the smallest group gives the degrees of freedom."""
    estimate = sum(pairs.difference for pairs in groups) / len(groups)
    fewest = min(len(pairs.before) for pairs in groups)
    if fewest < 2:
        return Interval(estimate, estimate - UNBOUNDED_MARGIN, estimate + UNBOUNDED_MARGIN)
    square = sum(_standard_error(pairs) ** 2 for pairs in groups)
    margin = student_t_quantile(fewest - 1, tail) * sqrt(square) / len(groups)
    return Interval(estimate, estimate - margin, estimate + margin)


def advantage_over_spread(value: Tensor, others: Tensor) -> Interval:
    """By how much a model's mean is below that of one more draw from the distribution of `others`.

    `value` [samples] and `others` [draws, samples] are figures on the same samples, less being
    better. It is the prediction interval of a draw, from the mean and the standard deviation of the
    others' means, widened by the sampling error of the difference.
    """
    draws, samples = others.shape
    means = others.mean(1)
    difference = others.mean(0) - value
    estimate = float(difference.mean())
    if draws < 2 or samples < 2:
        return Interval(estimate, estimate - UNBOUNDED_MARGIN, estimate + UNBOUNDED_MARGIN)
    between = float(means.var()) * (1 + 1 / draws)
    within = float(difference.var()) / samples
    margin = student_t_quantile(draws - 1) * sqrt(between + within)
    return Interval(estimate, estimate - margin, estimate + margin)


def is_above_chance(samples: Sequence[float], chance: float) -> bool:
    """Whether the mean of the samples, shares from 0 to 1, is significantly above `chance`.

    For samples of 0 and 1 by the exact binomial tail, else by the t interval of their mean. Both
    use the tail of a two-sided interval, 2.5 %.
    """
    count, right = len(samples), sum(samples)
    if set(samples) <= {0, 1}:
        return right > 0 and float(special.bdtrc(right - 1, count, chance)) < TAIL
    if count < 2:
        return False
    mean = right / count
    square = sum((value - mean) ** 2 for value in samples) / (count - 1)
    return mean - student_t_quantile(count - 1) * sqrt(square / count) > chance


def zero_event_bound(samples: int, tail: float = TAIL) -> float:
    """The one-sided upper confidence bound, a fraction, of the rate of an event that was never seen
    in `samples` trials; `tail` is that of a two-sided interval."""
    return 1 - float((2 * tail) ** (1 / samples))


def student_t_quantile(degrees_of_freedom: int, tail: float = TAIL) -> float:
    """The quantile of Student's t with probability `tail` above it."""
    return float(special.stdtrit(degrees_of_freedom, 1 - tail))


def _standard_error(pairs: Pairs) -> float:
    """Of the difference; with weights, of the ratio of sums."""
    weights = torch.ones_like(pairs.before) if pairs.weights is None else pairs.weights
    residuals = pairs.after - pairs.before - pairs.difference * weights
    return float(residuals.std()) / float(weights.mean()) / sqrt(len(weights))
