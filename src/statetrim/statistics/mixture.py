"""Statistics of several sources -> one, in which each source has its share."""

from collections.abc import Iterable, Mapping

from ..artifacts.statistics import LayerStatistics, Statistics
from ..errors import StatetrimError
from . import STATISTICS
from .statistic import Statistic, unusable


def mix_statistics(
    statistics: Statistics, wanted: Iterable[Statistic] = STATISTICS.values()
) -> Statistics:
    """Add the sources of `statistics`, each weighted by its fraction of the tokens; of each, only
    the `wanted` sums. Statistics of text alone are returned unchanged.

    The outputs of a layer may be ten times larger on one source than on another, so every sum is
    first divided by its size in its source, head by head.
    """
    shares = statistics.shares
    if not statistics.generated:
        return statistics
    layers = {}
    for layer in statistics.layers:
        sources = {name: by_layer[layer] for name, by_layer in statistics.sources.items()}
        layers[layer] = mix_layer(sources, shares, wanted, layer)
    return Statistics(layers, {**statistics.lineage, "shares": shares})


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
