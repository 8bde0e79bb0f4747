"""Statistics of several sources -> one, in which each source has its share."""

from collections.abc import Iterable, Mapping
from math import isfinite

from ..artifacts.statistics import TEXT, LayerStatistics, Statistics
from ..errors import StatetrimError
from . import STATISTICS
from .statistic import Statistic, unusable


def mix_statistics(
    statistics: Statistics,
    shares: Mapping[str, float] | None = None,
    wanted: Iterable[Statistic] = STATISTICS.values(),
) -> Statistics:
    """Add the sources of `statistics`, weighted by `shares`; of each, only the `wanted` sums.

    The outputs of a layer may be ten times larger on one source than on another, so every sum is
    first divided by its size in its source, head by head.
    `shares` are those of the generated sources, such as {"recall": 0.5}; text has the remaining
    share. The default is each source's fraction of the tokens. Statistics of text alone are
    returned unchanged. Raises StatetrimError for an unknown source or an invalid share.
    """
    weights = _source_weights(statistics, shares)
    if not statistics.generated:
        return statistics
    layers = {}
    for layer in statistics.layers:
        sources = {name: by_layer[layer] for name, by_layer in statistics.sources.items()}
        layers[layer] = mix_layer(sources, weights, wanted, layer)
    return Statistics(layers, {**statistics.lineage, "shares": weights})


def _source_weights(statistics: Statistics, shares: Mapping[str, float] | None) -> dict[str, float]:
    """Source -> weight, 1 in total: `shares`, with the rest for text and 0 for other sources, or
    the default weights."""
    default_weights = statistics.shares
    if shares is None:
        return default_weights
    unknown = sorted(set(shares) - set(statistics.generated))
    if unknown:
        available = ", ".join(statistics.generated) or "text alone"
        raise StatetrimError(
            f"the statistics hold nothing of {unknown[0]!r}, but {available}; calibrate with it "
            f"first"
        )
    total = sum(shares.values())
    if not isfinite(total) or min(shares.values(), default=0.0) < 0 or total > 1 + 1e-9:
        raise StatetrimError("shares must be from 0 to 1, and at most 1 in total")
    return {TEXT: max(0.0, 1 - total), **dict.fromkeys(statistics.generated, 0.0), **shares}


def mix_layer(
    sources: Mapping[str, LayerStatistics],
    shares: Mapping[str, float],
    wanted: Iterable[Statistic],
    layer: int,
) -> LayerStatistics:
    """The `wanted` sums of one layer as far as they exist, each divided by its size in its source
    and added by `shares`; tokens are added."""
    mixed = {}
    for statistic in wanted:
        values = {name: sums.sums.get(statistic.name) for name, sums in sources.items()}
        shapes = {None if value is None else value.shape for value in values.values()}
        if shapes == {None}:
            continue
        if len(shapes) > 1:
            raise StatetrimError(
                f"the sources differ in the size or presence of {statistic.name!r}"
            )
        terms = []
        for name, value in values.items():
            if value is None or value.dim() != len(statistic.shape.split()):
                raise unusable(statistic.name, layer)
            terms.append(shares[name] * value / statistic.divisor(sources[name]))
        mixed[statistic.name] = sum(terms[1:], start=terms[0])
    return LayerStatistics(sum(sums.tokens for sums in sources.values()), mixed)
