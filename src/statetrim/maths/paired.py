"""Before and after on the same samples: is the difference more than chance?

Pure functions on float64 tensors; samples are documents, questions or sequences, never tokens, for
tokens of one document are not independent.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, sqrt
from statistics import NormalDist

import torch
from torch import Tensor

_CHUNK = 2**22  # resampled indices held at a time


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
        return Interval(-self.estimate, -self.high, -self.low)


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
    drawn = torch.stack([_resample(pairs, resamples, generator) for pairs in groups]).mean(0)
    fewest = min(len(pairs.before) for pairs in groups)
    tail = _tail((1 - level) / 2, fewest)
    bounds = torch.quantile(drawn, torch.tensor([tail, 1 - tail], dtype=torch.float64))
    estimate = sum(pairs.difference for pairs in groups) / len(groups)
    return Interval(estimate, float(bounds[0]), float(bounds[1]))


def unseen(samples: int, level: float = 0.95) -> float:
    """The largest rate at which something may happen that did not happen in `samples` trials."""
    return 1 - float((1 - level) ** (1 / samples))


def _resample(pairs: Pairs, resamples: int, generator: torch.Generator) -> Tensor:
    """The difference in each of `resamples` draws with replacement, float64 [resamples]."""
    difference, count = pairs.after - pairs.before, len(pairs.before)
    found = []
    for start in range(0, resamples, max(1, _CHUNK // count)):
        rows = min(max(1, _CHUNK // count), resamples - start)
        index = torch.randint(count, (rows, count), generator=generator)
        total = difference[index].sum(-1)
        found.append(total / (pairs.weights[index].sum(-1) if pairs.weights is not None else count))
    return torch.cat(found)


def _tail(tail: float, samples: int) -> float:
    """The percentile to take so that the interval is as wide as Student's t asks."""
    if samples < 2:
        return 0.0
    z, free = NormalDist().inv_cdf(tail), samples - 1
    t = z + (z**3 + z) / (4 * free) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)
    return NormalDist().cdf(t * sqrt(samples / free))
