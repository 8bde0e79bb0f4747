"""Statistics of several calibration sources -> the weighted sum that methods and the refit read.

The outputs of a layer may be ten times larger on one source than on another. So every sum is
divided by its size in its source, head by head, before the sources are added by their shares,
which can still be chosen after calibration.
"""

from collections.abc import Mapping
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from ..errors import StatetrimError
from .statistics import REFIT_SUM_NAMES, SUM_NAMES, TEXT, LayerStatistics, Statistics

_PARTNER = {  # queries and keys are divided by the same number, which keeps their ratio
    "query_gram": "key_gram",
    "key_gram": "query_gram",
    "query_unit_gram": "key_unit_gram",
    "key_unit_gram": "query_unit_gram",
    "query_gradient": "key_gradient",
    "key_gradient": "query_gradient",
}
_NDIM = {"square": 1, "moment": 2, "read": 2, "ranks": 2, "gram": 3, "gradient": 4}
"""Last word of a sum's name -> its dimensions."""


def mix_statistics(statistics: Statistics, shares: Mapping[str, float] | None = None) -> Statistics:
    """Add the sources of `statistics`, weighted by `shares`.

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
        layers[layer] = _mix_layer(sources, weights)
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


def _mix_layer(
    sources: Mapping[str, LayerStatistics], shares: Mapping[str, float]
) -> LayerStatistics:
    """The sums of one layer, each divided by its size in its source and added by `shares`; tokens
    are added."""
    mixed: dict[str, Any] = {"tokens": sum(sums.tokens for sums in sources.values())}
    for sum_name in SUM_NAMES:
        values = [getattr(sums, sum_name) for sums in sources.values()]
        shapes = {None if value is None else value.shape for value in values}
        if shapes == {None}:
            continue
        if len(shapes) > 1:
            raise StatetrimError(f"the sources differ in the size or presence of {sum_name!r}")
        if values[0].dim() != _NDIM[sum_name.rpartition("_")[2]]:
            raise StatetrimError(f"the statistics have no usable {sum_name!r}; calibrate again")
        mixed[sum_name] = 0
        for (name, sums), value in zip(sources.items(), values, strict=True):
            mixed[sum_name] = mixed[sum_name] + shares[name] * value / _scale(sums, sum_name)
    return LayerStatistics(**mixed)


def _scale(sums: LayerStatistics, sum_name: str) -> Tensor:
    """The size of a sum in its source: one number, or one per head that broadcasts over the sum."""
    value: Tensor = getattr(sums, sum_name)
    if sum_name in REFIT_SUM_NAMES:  # errors relative to the layer's output on this source
        scale = sums.target_square if sums.target_square is not None else torch.ones(1)
    elif sum_name == "output_square":
        scale = torch.tensor([float(sums.tokens)], dtype=value.dtype)
    elif sum_name == "state_ranks":  # means over the sampled states
        scale = value[:, :1]
    elif sum_name == "input_square":
        scale = value.sum()
    else:
        partner = getattr(sums, _PARTNER[sum_name]) if sum_name in _PARTNER else None
        scale = _size_per_head(sum_name, value)
        if partner is not None:
            scale = scale + _size_per_head(sum_name, partner)
        scale = scale.reshape(-1, *[1] * (value.dim() - 1))
    return scale.clamp_min(torch.finfo(value.dtype).tiny)


def _size_per_head(sum_name: str, value: Tensor) -> Tensor:
    """[heads]: the trace of a Gram matrix, the sum of magnitudes of another sum."""
    if sum_name.endswith(("gradient", "read")):
        return value.abs().flatten(1).sum(1)
    return value.diagonal(dim1=-2, dim2=-1).sum(-1)
