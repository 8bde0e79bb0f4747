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
from .statistics import PARTS, REFIT_PARTS, TEXT, LayerStatistics, Statistics

_TOGETHER = {  # queries and keys are divided by one number, so that their balance stays
    "query_gram": "key_gram",
    "query_unit_gram": "key_unit_gram",
    "query_gradient": "key_gradient",
}
_PARTNER = _TOGETHER | {key: query for query, key in _TOGETHER.items()}

_DIMENSIONS = {
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


def mixed(statistics: Statistics, shares: Mapping[str, float] | None = None) -> Statistics:
    """One set of sums; `shares` by source, such as {"recall": 0.5}, of which text takes the rest.

    Without shares every source counts its part of the tokens. Statistics of text alone stay as
    they are.
    """
    weights = _checked(statistics, shares)
    if not statistics.generated:
        return statistics
    layers = {
        layer: _mixture({name: held[layer] for name, held in statistics.sources.items()}, weights)
        for layer in statistics.layers
    }
    return Statistics(layers, {**statistics.lineage, "shares": weights})


def _checked(statistics: Statistics, shares: Mapping[str, float] | None) -> dict[str, float]:
    if shares is None:
        return statistics.shares
    unknown = sorted(set(shares) - set(statistics.generated))
    if unknown:
        known = ", ".join(statistics.generated) or "text alone"
        raise StatetrimError(
            f"the statistics hold nothing of {unknown[0]!r}, but {known}; calibrate with it first"
        )
    total = sum(shares.values())
    sound = all(isfinite(share) and share >= 0 for share in shares.values())
    if not sound or total > 1 + 1e-9:
        raise StatetrimError("shares are parts of one: each from 0 to 1, and no more than 1 in all")
    rest = {name: shares.get(name, 0.0) for name in statistics.generated}
    return {TEXT: max(0.0, 1 - total), **rest}


def _mixture(
    sources: Mapping[str, LayerStatistics], shares: Mapping[str, float]
) -> LayerStatistics:
    found: dict[str, Any] = {}
    for part in PARTS:
        values = [getattr(sums, part) for sums in sources.values()]
        if all(value is None for value in values):
            continue
        if any(value is None or value.shape != values[0].shape for value in values):
            raise StatetrimError(f"the sources differ in the size or presence of {part!r}")
        if values[0].dim() != _DIMENSIONS[part]:
            raise StatetrimError(f"the statistics have no usable {part!r}; calibrate again")
        found[part] = sum(
            shares[name] * getattr(sums, part) / _size(sums, part) for name, sums in sources.items()
        )
    return LayerStatistics(sum(sums.tokens for sums in sources.values()), **found)


def _size(sums: LayerStatistics, part: str) -> Tensor:
    """How large a sum is in its source: a number, or one a head, shaped to divide it."""
    value: Tensor = getattr(sums, part)
    if part in REFIT_PARTS:  # errors become parts of what the layer puts out on this source
        size = sums.target_square if sums.target_square is not None else torch.ones(1)
    elif part == "output_square":
        size = torch.tensor([float(sums.tokens)], dtype=value.dtype)
    elif part == "input_square":
        size = value.sum()
    else:
        partner = getattr(sums, _PARTNER[part]) if part in _PARTNER else None
        size = _by_head(part, value) + (0.0 if partner is None else _by_head(part, partner))
        size = size.reshape(-1, *[1] * (value.dim() - 1))
    return size.clamp_min(torch.finfo(value.dtype).tiny)


def _by_head(part: str, value: Tensor) -> Tensor:
    """[heads]: the trace of a Gram, the absolute sum of a gradient."""
    if part.endswith("gradient"):
        return value.abs().flatten(1).sum(1)
    return value.diagonal(dim1=-2, dim2=-1).sum(-1)
