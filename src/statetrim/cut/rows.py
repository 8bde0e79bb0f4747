"""Which rows of a tensor belong to which channels or heads of the state.

This is index arithmetic, independent of model families and weights.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

import torch
from torch import Tensor

from .geometry import Geometry
from .shape import CHANNEL_AXES, ChannelAxis, Kept

Role = Literal[
    "q_proj", "k_proj", "v_proj", "q_conv", "k_conv", "v_conv", "q_bias", "k_bias", "v_bias",
    "gate", "norm", "shared_norm", "o_proj",
]  # fmt: skip
"""What a tensor does in its mixer. The weights of a `shared_norm` are those of every head."""


@dataclass(frozen=True, eq=False)
class ChannelRows:
    """The entries along `dim` of `tensor` that belong to the channels of one axis of the state."""

    tensor: str
    role: Role
    rows: Tensor  # [heads, channels], int64
    size: int  # of the tensor along `dim`
    axis: ChannelAxis = "key"
    dim: int = 0
    optional: bool = False


def row_indices(heads: int, channels: int, start: int = 0, stride: int | None = None) -> Tensor:
    """Row indices [heads, channels]: head h starts at `start + h * stride` (default: packed)."""
    head = torch.arange(heads).unsqueeze(1)
    return start + head * (channels if stride is None else stride) + torch.arange(channels)


def head_rows_from_channels(
    channel_rows: Sequence[ChannelRows], *other_rows: list[ChannelRows]
) -> list[ChannelRows]:
    """Rows by head from rows by channel and others, without those of a norm that heads share."""
    return [row for row in (*channel_rows, *chain(*other_rows)) if row.role != "shared_norm"]


def per_head_rows(
    tensors: Iterable[str], heads: int, axis: ChannelAxis = "value"
) -> list[ChannelRows]:
    """Rows of optional tensors that have one row, or one number, per head."""
    table = row_indices(heads, 1)
    return [ChannelRows(name, "gate", table, heads, axis=axis, optional=True) for name in tensors]


def kept_masks(channel_rows: Sequence[ChannelRows], kept: Kept) -> dict[int, Tensor]:
    """Dimension -> bool mask [size] of the entries that stay; `channel_rows` are of one tensor. An
    axis that is not in `kept` stays whole."""
    masks: dict[int, Tensor] = {}
    for entry in channel_rows:
        if entry.axis in kept:
            kept_channels = kept[entry.axis]
            if entry.role == "shared_norm":  # folded into gates: only the number of entries counts
                kept_channels = torch.arange(kept_channels.shape[1]).unsqueeze(0)
            pruned = torch.ones_like(entry.rows, dtype=torch.bool)
            pruned.scatter_(1, kept_channels, False)
            mask = masks.setdefault(entry.dim, torch.ones(entry.size, dtype=torch.bool))
            mask[entry.rows[pruned]] = False
    return masks


def kept_head_masks(
    head_rows: Sequence[ChannelRows], heads: Tensor, group: int
) -> dict[int, Tensor]:
    """Dimension -> bool mask [size] of the entries that stay when only the value `heads` do; none
    for a dimension that stays whole. `head_rows` are of one tensor, with one row of indices per
    head. A key head, which `group` value heads share, stays with any of them."""
    masks: dict[int, Tensor] = {}
    value_heads = heads.flatten()
    for entry in head_rows:
        removed = torch.ones(len(entry.rows), dtype=torch.bool)
        removed[value_heads if entry.axis == "value" else value_heads // group] = False
        if bool(removed.any()):
            mask = masks.setdefault(entry.dim, torch.ones(entry.size, dtype=torch.bool))
            mask[entry.rows[removed]] = False
    return masks


def over_all_heads(kept: Kept, geometry: Geometry) -> Kept:
    """`kept` of one layer with a row of channels for every head of the original `geometry`; for
    those that are removed, any channels."""
    if "head" not in kept:
        return kept
    spread = dict(kept)
    for axis in CHANNEL_AXES:
        if axis in kept:
            spread[axis] = kept[axis][:1].repeat(geometry.heads(axis), 1)
            spread[axis][rows_of_heads(axis, kept["head"], geometry)] = kept[axis]
    return spread


def rows_of_heads(axis: ChannelAxis, value_heads: Tensor, geometry: Geometry) -> Tensor:
    """Indices, ascending and unique, of the heads of the axis that the `value_heads` belong to."""
    sharing = geometry.num_v_heads // geometry.heads(axis)
    rows: Tensor = torch.unique(value_heads // sharing)
    return rows
