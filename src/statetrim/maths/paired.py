"""Before and after on the same samples: is the difference more than chance?

Pure functions on float64 tensors; samples are documents, questions or sequences, never tokens, for
tokens of one document are not independent.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, exp, lgamma, log, log1p, pi, sqrt, tan
from statistics import NormalDist

import torch
from torch import Tensor

_CHUNK = 2**22  # resampled indices held at a time
UNBOUNDED_MARGIN = 1e3  # a margin that excludes nothing, and that JSON can hold
SMALL_SAMPLE = 8  # samples up to which a bootstrap interval is too short


@dataclass(frozen=True)
class Interval:
    """An estimate and the bounds between which the truth lies at the level asked for."""

    estimate: float
    low: float
    high: float

    @property
    def margin(self) -> float:
        return (self.high - self.low) / 2

    def __neg__(self) -> "Interval":
        return Interval(0.0 - self.estimate, 0.0 - self.high, 0.0 - self.low)  # no -0.0


@dataclass(frozen=True, eq=False)
class Pairs:
    """One metric of two models on the same samples: mean of `after - before`, over `weights`.

    Without weights every sample counts the same. With them (words per document) the figure is the
    sum of differences over the sum of weights, as for perplexity.
    """

    before: Tensor  # float64 [samples]
    after: Tensor  # float64 [samples]
    weights: Tensor | None = None  # float64 [samples]

    @property
    def difference(self) -> float:
        total = self.weights.sum() if self.weights is not None else len(self.before)
        return float((self.after - self.before).sum() / total)


def mcnemar(before: Tensor, after: Tensor, *, mid: bool = True) -> float:
    """Two-sided p-value for right/wrong answers of two models to the same questions.

    Only questions that one model alone answers count: under the null each is a fair coin. Exact, or
    with `mid` half the probability of what was seen is taken off, which makes the test neither
    careful nor bold where few answers differ.
    """
    only_before = int(((before > 0.5) & (after <= 0.5)).sum())
    only_after = int(((after > 0.5) & (before <= 0.5)).sum())
    flips = only_before + only_after
    fewer = min(only_before, only_after)
    if only_before == only_after:
        return 1.0 - (comb(flips, fewer) / 2 ** (flips + 1) if mid and flips else 0.0)
    ways = tail = 1
    for k in range(fewer):
        ways = ways * (flips - k) // (k + 1)  # ways to choose k + 1 of the flips
        tail += ways
    return float((2 * tail - (ways if mid else 0)) / 2**flips)


def difference_interval(
    groups: Sequence[Pairs], *, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Interval:
    """Bootstrap interval of the difference, averaged over `groups` that are resampled apart.

    Percentiles widened for small samples as in Hesterberg (2015), so that 20 documents do not look
    surer than they are.
    """
    generator = torch.Generator().manual_seed(seed)
    resampled = torch.stack(
        [_resampled_differences(pairs, resamples, generator) for pairs in groups]
    ).mean(0)
    fewest = min(len(pairs.before) for pairs in groups)
    tail = _widened_tail((1 - level) / 2, fewest)
    bounds = torch.quantile(resampled, torch.tensor([tail, 1 - tail], dtype=torch.float64))
    estimate = sum(pairs.difference for pairs in groups) / len(groups)
    low, high = float(bounds[0]), float(bounds[1])
    if (
        fewest <= SMALL_SAMPLE
    ):  # resampling a handful shows too little: Student's t of the worst group
        margin = max(_student_margin(pairs, (1 - level) / 2) for pairs in groups)
        low, high = min(low, estimate - margin), max(high, estimate + margin)
    return Interval(estimate, low, high)


def is_above_chance(samples: Sequence[float], chance: float, level: float = 0.95) -> bool:
    """Whether the mean of shares is above `chance` by more than luck explains.

    Right and wrong answers by the binomial tail, which few samples do not deceive; other shares by
    the interval of their mean.
    """
    count, right = len(samples), sum(samples)
    tail = (1 - level) / 2
    if set(samples) <= {0, 1}:
        return right > 0 and _binomial_tail(int(right), count, chance) < tail
    if count < 2:
        return False
    mean = right / count
    square = sum((value - mean) ** 2 for value in samples) / (count - 1)
    return mean - student_t_quantile(tail, count - 1) * sqrt(square / count) > chance


def _binomial_tail(right: int, count: int, chance: float) -> float:
    """Probability of at least `right` right answers of `count` by guessing."""
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


def zero_event_bound(samples: int, level: float = 0.95) -> float:
    """The largest rate at which something may happen that did not happen in `samples` trials."""
    return 1 - float((1 - level) ** (1 / samples))


def student_t_quantile(tail: float, degrees_of_freedom: int) -> float:
    """Student's t that leaves `tail` above it; the expansion of Cornish and Fisher, and exact
    forms for one and two degrees of freedom, where it fails."""
    if degrees_of_freedom == 1:
        return tan(pi * (0.5 - tail))
    if degrees_of_freedom == 2:
        return (1 - 2 * tail) / sqrt(2 * tail * (1 - tail))
    z = NormalDist().inv_cdf(1 - tail)
    return z + sum(
        (
            (z**3 + z) / (4 * degrees_of_freedom),
            (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees_of_freedom**2),
            (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * degrees_of_freedom**3),
            (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z)
            / (92160 * degrees_of_freedom**4),
        )
    )


def _student_margin(pairs: Pairs, tail: float) -> float:
    """Half the width of the interval that Student's t gives."""
    count = len(pairs.before)
    if count < 2:
        return UNBOUNDED_MARGIN
    weights = torch.ones_like(pairs.before) if pairs.weights is None else pairs.weights
    residuals = pairs.after - pairs.before - pairs.difference * weights
    spread = float(residuals.std()) / float(weights.mean())
    return student_t_quantile(tail, count - 1) * spread / sqrt(count)


def _resampled_differences(pairs: Pairs, resamples: int, generator: torch.Generator) -> Tensor:
    """The difference in each of `resamples` draws with replacement, float64 [resamples]."""
    difference, count = pairs.after - pairs.before, len(pairs.before)
    chunks = []
    for start in range(0, resamples, max(1, _CHUNK // count)):
        rows = min(max(1, _CHUNK // count), resamples - start)
        index = torch.randint(count, (rows, count), generator=generator)
        total = difference[index].sum(-1)
        chunks.append(
            total / (pairs.weights[index].sum(-1) if pairs.weights is not None else count)
        )
    return torch.cat(chunks)


def _widened_tail(tail: float, samples: int) -> float:
    """The percentile to take so that the interval is as wide as Student's t asks."""
    if samples < 2:
        return 0.0
    z, degrees_of_freedom = NormalDist().inv_cdf(tail), samples - 1
    t = (
        z
        + (z**3 + z) / (4 * degrees_of_freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees_of_freedom**2)
    )
    return NormalDist().cdf(t * sqrt(samples / degrees_of_freedom))
