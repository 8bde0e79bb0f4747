"""Shapes of the recurrent state, and which rows of a tensor belong to which of its channels.

This is index arithmetic, independent of model families and weights.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain, pairwise
from math import ceil
from typing import Literal

import torch
from torch import Tensor

from .errors import StatetrimError
from .maths.formatting import choices_text
from .request import Side

Axis = Literal["key", "value"]
Role = Literal[
    "q_proj", "k_proj", "v_proj", "q_conv", "k_conv", "v_conv", "q_bias", "k_bias", "v_bias",
    "gate", "norm", "shared_norm", "o_proj",
]  # fmt: skip
"""What a tensor does in its mixer. The weights of a `shared_norm` are those of every head."""
Kept = Mapping[Axis, Tensor]
"""Kept channels of one layer: axis -> [heads, keep], ascending in each head."""

MAX_LAYERS = 4096
MAX_CHANNELS = 65536
_MAX_HEADS = 4096
_MAX_ROWS = 2**20  # heads x channels, of which row tables are made
_RANGES = {
    "num_k_heads": (1, _MAX_HEADS),
    "num_v_heads": (1, _MAX_HEADS),
    "head_k_dim": (1, MAX_CHANNELS),
    "head_v_dim": (1, MAX_CHANNELS),
    "conv_key_heads": (0, 2**24),
    "conv_value_heads": (0, 2**24),
    "conv_width": (0, 1024),
    "shared_values": (1, _MAX_HEADS),
    "copies": (1, _MAX_HEADS),
}
"""Field of `Geometry` -> smallest and largest value in an untrusted file."""

KERNEL_TILE = 16
"""Triton's smallest matrix tile: heads of other widths are padded up to a multiple of it."""


@dataclass(frozen=True)
class Geometry:
    """The shape of a model's state: per layer `num_v_heads` matrices of head_v_dim x head_k_dim.

    A key head serves `num_v_heads / num_k_heads` value heads (in Mamba-2 it is a B/C group). In GLA
    `shared_values` heads write the same values. A head has `copies` states in models with several
    memories or time scales. The short convolution has the channels of `conv_key_heads` and
    `conv_value_heads` heads, and keeps its last `conv_width` inputs.

    Stock models have one shape for all layers, and no `widths`. With widths by layer, `widths`
    lists (key width, value width) for each of `layers`, and `head_k_dim` and `head_v_dim` are the
    largest of them.
    """

    layers: tuple[int, ...]
    num_k_heads: int
    num_v_heads: int
    head_k_dim: int
    head_v_dim: int
    conv_key_heads: int = 0
    conv_value_heads: int = 0
    conv_width: int = 0
    shared_values: int = 1
    widths: tuple[tuple[int, int], ...] = ()
    copies: int = 1

    def check(self) -> None:
        """Raise ValueError, which names the field, for a geometry that no real model has."""
        for name, (smallest, largest) in _RANGES.items():
            value = getattr(self, name)
            if not smallest <= value <= largest:
                raise ValueError(f"{name} must lie between {smallest} and {largest}, not {value}")
        if self.num_v_heads % self.num_k_heads:
            raise ValueError(
                f"{self.num_v_heads} value heads for {self.num_k_heads} key heads are not a whole "
                f"number for each"
            )
        for channels in (self.head_k_dim, self.head_v_dim):
            if self.num_v_heads * channels > _MAX_ROWS:
                raise ValueError(f"{self.num_v_heads} heads of {channels} channels are too many")
        ascending = all(a < b for a, b in pairwise((-1, *self.layers)))
        if not self.layers or not ascending or len(self.layers) > MAX_LAYERS:
            raise ValueError("layers must increase from 0")
        if self.widths:
            if len(self.widths) != len(self.layers) or min(map(min, self.widths)) < 1:
                raise ValueError("widths must be positive, and of every layer")
            if self.with_shapes(self.shapes) != self:
                raise ValueError("widths are other than head_k_dim and head_v_dim")

    @property
    def shapes(self) -> dict[int, tuple[int, int]]:
        """Layer -> (key width, value width)."""
        uniform = ((self.head_k_dim, self.head_v_dim),) * len(self.layers)
        return dict(zip(self.layers, self.widths or uniform, strict=True))

    @property
    def shape(self) -> str:
        """ "64 x 64", key width first; with widths by layer each shape and its number of layers."""
        if not self.widths:
            return f"{self.head_k_dim} x {self.head_v_dim}"
        counts = Counter(self.widths)
        return ", ".join(f"{n} of {k} x {v}" for (k, v), n in sorted(counts.items(), reverse=True))

    def describe_against(self, other: "Geometry") -> str:
        """The shape as text, with the number of value heads if it differs from that of `other`."""
        same_heads = self.num_v_heads == other.num_v_heads
        return self.shape if same_heads else f"{self.num_v_heads} heads of {self.shape}"

    @property
    def group(self) -> int:
        """Value heads per key head."""
        return self.num_v_heads // self.num_k_heads

    @property
    def tensor_parallel(self) -> list[int]:
        """Tensor-parallel sizes that divide the key heads, with their value heads, evenly."""
        return [n for n in range(1, self.num_k_heads + 1) if self.num_k_heads % n == 0]

    @property
    def state_numel(self) -> int:
        """Elements of recurrent state per sequence, over all layers."""
        states = self.num_v_heads * self.copies
        return states * sum(keys * values for keys, values in self.shapes.values())

    @property
    def conv_numel(self) -> int:
        """Elements of convolution state per sequence, over all layers."""
        return self.conv_width * sum(
            self.conv_key_heads * keys + self.conv_value_heads * values
            for keys, values in self.shapes.values()
        )

    def for_layer(self, layer: int) -> "Geometry":
        """A geometry whose layers all have the shape of this layer."""
        keys, values = self.shapes[layer]
        return replace(self, head_k_dim=keys, head_v_dim=values, widths=())

    def with_shapes(self, shapes: Mapping[int, tuple[int, int]]) -> "Geometry":
        """A geometry with these (key width, value width) by layer; no `widths` if all are equal."""
        widths = tuple(shapes[layer] for layer in self.layers)
        keys, values = (max(axis) for axis in zip(*widths, strict=True))
        uniform = len(set(widths)) == 1
        return replace(self, head_k_dim=keys, head_v_dim=values, widths=() if uniform else widths)

    def with_heads(self, num_k_heads: int, num_v_heads: int) -> "Geometry":
        """A geometry with these numbers of heads, of the same shape, in every layer."""
        return replace(
            self,
            num_k_heads=num_k_heads,
            num_v_heads=num_v_heads,
            conv_key_heads=self.conv_key_heads * num_k_heads // self.num_k_heads,
            conv_value_heads=self.conv_value_heads * num_v_heads // self.num_v_heads,
        )

    def heads(self, axis: Axis) -> int:
        """Number of heads that select channels along this axis independently."""
        return self.num_k_heads if axis == "key" else self.num_v_heads // self.shared_values

    def width(self, axis: Axis) -> int:
        """Channels per head along one axis of the state; with widths by layer the largest."""
        return self.head_k_dim if axis == "key" else self.head_v_dim

    def resized(self, head_k_dim: int | None = None, head_v_dim: int | None = None) -> "Geometry":
        """A geometry with these widths in every layer; None keeps the largest."""
        return replace(
            self,
            head_k_dim=head_k_dim or self.head_k_dim,
            head_v_dim=head_v_dim or self.head_v_dim,
            widths=(),
        )


@dataclass(frozen=True, eq=False)
class ChannelRows:
    """The entries along `dim` of `tensor` that belong to the channels of one axis of the state."""

    tensor: str
    role: Role
    rows: Tensor  # [heads, channels], int64
    size: int  # of the tensor along `dim`
    axis: Axis = "key"
    dim: int = 0
    optional: bool = False


def row_indices(heads: int, channels: int, start: int = 0, stride: int | None = None) -> Tensor:
    """Row indices [heads, channels]: head h starts at `start + h * stride` (default: packed)."""
    head = torch.arange(heads).unsqueeze(1)
    return start + head * (channels if stride is None else stride) + torch.arange(channels)


def head_rows_from_channels(
    channel_rows: Sequence[ChannelRows], *other_rows: list[ChannelRows]
) -> list[ChannelRows]:
    """Rows by head, from rows by channel (whose tables are [heads, channels]) and `other_rows`. A
    norm shared by all heads has no rows of a single head and is left out."""
    return [row for row in (*channel_rows, *chain(*other_rows)) if row.role != "shared_norm"]


def per_head_rows(tensors: Iterable[str], heads: int, axis: Axis = "value") -> list[ChannelRows]:
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
    channel_rows: Sequence[ChannelRows], kept_heads: Tensor, group: int
) -> dict[int, Tensor]:
    """Dimension -> bool mask [size] of the entries that stay when heads are removed; none for a
    dimension that stays whole. `channel_rows` are of one tensor, with one row of indices per head.
    `kept_heads` are value heads, of which `group` share a key head, which stays with any of
    them."""
    masks: dict[int, Tensor] = {}
    value_heads = kept_heads.flatten()
    for entry in channel_rows:
        removed = torch.ones(len(entry.rows), dtype=torch.bool)
        removed[value_heads if entry.axis == "value" else value_heads // group] = False
        if bool(removed.any()):
            mask = masks.setdefault(entry.dim, torch.ones(entry.size, dtype=torch.bool))
            mask[entry.rows[removed]] = False
    return masks


def resolve_width(requested: Side, channels: int) -> int:
    """Channels to keep of an axis, at most all; raises StatetrimError for a count that it lacks.

    A part is exact (10% of 100 is 10). On heads of 64 or more channels it is rounded up to a
    multiple of 16, to which kernels would pad anyway.
    """
    if isinstance(requested, Fraction):
        width = ceil(requested * channels)
        if channels >= 4 * KERNEL_TILE:
            width = ceil(width / KERNEL_TILE) * KERNEL_TILE
        return min(width, channels)
    if not 1 <= requested <= channels:
        raise StatetrimError(f"cannot keep {requested} of {channels} channels per head")
    return requested


def resolve_heads(requested: Side, geometry: Geometry) -> Geometry:
    """`geometry` with this number of value heads, from a count or a part.

    A multiple of the key heads keeps all key heads, with fewer value heads each, unless heads share
    values (GLA). Any other count removes key heads with all their value heads. A part is rounded up
    to an allowed count. Raises StatetrimError for one that is not allowed, so for all heads too.
    """
    num_heads, counts = geometry.num_v_heads, allowed_head_counts(geometry)
    heads = ceil(requested * num_heads) if isinstance(requested, Fraction) else requested
    if isinstance(requested, Fraction):
        heads = next((count for count in counts if count >= heads), heads)
    if not counts:
        raise StatetrimError(f"the model has one head of {geometry.shape}, which cannot be removed")
    if heads not in counts:
        raise StatetrimError(
            f"cannot keep {heads} of {num_heads} value heads, {geometry.group} to each of "
            f"{geometry.num_k_heads} key heads; give {_choices_text(counts)}, "
            f"or a part such as 50%heads"
        )
    keeps_all = _keeps_all_key_heads(heads, geometry)
    return geometry.with_heads(
        geometry.num_k_heads if keeps_all else heads // geometry.group, heads
    )


def allowed_head_counts(geometry: Geometry) -> list[int]:
    """Numbers of value heads, below the present one, to which a model can be cut; ascending."""
    fewer = range(1, geometry.num_v_heads)
    return [n for n in fewer if n % geometry.group == 0 or _keeps_all_key_heads(n, geometry)]


def _keeps_all_key_heads(heads: int, geometry: Geometry) -> bool:
    return heads % geometry.num_k_heads == 0 and geometry.shared_values == 1


def _choices_text(counts: Sequence[int]) -> str:
    """ "1, 2 or 3"; of more than eight counts the first four and the last."""
    if len(counts) > 8:
        return f"one of {', '.join(map(str, counts[:4]))}, ..., {counts[-1]}"
    return choices_text(counts)
