"""Statistics of several sources -> those of their mixture, in shares that are chosen late.

Text and generated sequences differ in size: a layer may put out ten times as much on one as on the
other. So every sum is first divided by how large it is in its own source, head by head, and then
the sources are added by their shares. Methods and the refit see one set of sums, as ever.
"""

from collections.abc import Mapping
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from ..errors import StatetrimError
from .statistics import REFIT_SUM_NAMES, SUM_NAMES, TEXT, LayerStatistics, Statistics

_SHARED_SCALE = {  # queries and keys are divided by one number, so that their balance stays
    "query_gram": "key_gram",
    "query_unit_gram": "key_unit_gram",
    "query_gradient": "key_gradient",
}
_PARTNER = _SHARED_SCALE | {key: query for query, key in _SHARED_SCALE.items()}

_NDIM = {
    "input_square": 1,
    "output_square": 1,
    "target_square": 1,
    "readout_moment": 2,
    "target_moment": 2,
    "query_gradient": 4,
    "key_gradient": 4,
    **dict.fromkeys(("query_gram", "key_gram", "query_unit_gram", "key_unit_gram"), 3),
    "readout_gram": 3,
}


def mix_statistics(statistics: Statistics, shares: Mapping[str, float] | None = None) -> Statistics:
    """One set of sums; `shares` by source, such as {"recall": 0.5}, of which text takes the rest.

    Without shares every source counts its part of the tokens. Statistics of text alone stay as
    they are.
    """
    weights = _source_weights(statistics, shares)
    if not statistics.generated:
        return statistics
    layers = {
        layer: _mix_layer(
            {name: source_layers[layer] for name, source_layers in statistics.sources.items()},
            weights,
        )
        for layer in statistics.layers
    }
    return Statistics(layers, {**statistics.lineage, "shares": weights})


def _source_weights(statistics: Statistics, shares: Mapping[str, float] | None) -> dict[str, float]:
    if shares is None:
        return statistics.shares
    unknown = sorted(set(shares) - set(statistics.generated))
    if unknown:
        available = ", ".join(statistics.generated) or "text alone"
        raise StatetrimError(
            f"the statistics hold nothing of {unknown[0]!r}, but {available}; calibrate with it first"
        )
    total = sum(shares.values())
    valid = all(isfinite(share) and share >= 0 for share in shares.values())
    if not valid or total > 1 + 1e-9:
        raise StatetrimError("shares are parts of one: each from 0 to 1, and no more than 1 in all")
    generated_shares = {name: shares.get(name, 0.0) for name in statistics.generated}
    return {TEXT: max(0.0, 1 - total), **generated_shares}


def _mix_layer(
    sources: Mapping[str, LayerStatistics], shares: Mapping[str, float]
) -> LayerStatistics:
    mixed_sums: dict[str, Any] = {}
    for sum_name in SUM_NAMES:
        values = [getattr(sums, sum_name) for sums in sources.values()]
        if all(value is None for value in values):
            continue
        if any(value is None or value.shape != values[0].shape for value in values):
            raise StatetrimError(f"the sources differ in the size or presence of {sum_name!r}")
        if values[0].dim() != _NDIM[sum_name]:
            raise StatetrimError(f"the statistics have no usable {sum_name!r}; calibrate again")
        mixed_sums[sum_name] = sum(
            shares[name] * getattr(sums, sum_name) / _scale(sums, sum_name)
            for name, sums in sources.items()
        )
    return LayerStatistics(sum(sums.tokens for sums in sources.values()), **mixed_sums)


def _scale(sums: LayerStatistics, sum_name: str) -> Tensor:
    """How large a sum is in its source: a number, or one a head, shaped to divide it."""
    value: Tensor = getattr(sums, sum_name)
    if sum_name in REFIT_SUM_NAMES:  # errors become parts of what the layer puts out on this source
        scale = sums.target_square if sums.target_square is not None else torch.ones(1)
    elif sum_name == "output_square":
        scale = torch.tensor([float(sums.tokens)], dtype=value.dtype)
    elif sum_name == "input_square":
        scale = value.sum()
    else:
        partner = getattr(sums, _PARTNER[sum_name]) if sum_name in _PARTNER else None
        scale = _size_per_head(sum_name, value) + (
            0.0 if partner is None else _size_per_head(sum_name, partner)
        )
        scale = scale.reshape(-1, *[1] * (value.dim() - 1))
    return scale.clamp_min(torch.finfo(value.dtype).tiny)


def _size_per_head(sum_name: str, value: Tensor) -> Tensor:
    """[heads]: the trace of a Gram, the absolute sum of a gradient."""
    if sum_name.endswith("gradient"):
        return value.abs().flatten(1).sum(1)
    return value.diagonal(dim1=-2, dim2=-1).sum(-1)
