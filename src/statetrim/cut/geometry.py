"""The shape of a model's recurrent state, layers, heads and widths; before and after a cut."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from math import ceil

from ..errors import StatetrimError
from ..maths.formatting import choices_text, count_of
from .request import Side
from .shape import Axis, ChannelAxis, Shape

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
}
"""Field of `Geometry` -> smallest and largest value in an untrusted file."""

KERNEL_TILE = 16
"""Triton's smallest matrix tile: heads of other widths are padded up to a multiple of it."""


@dataclass(frozen=True)
class Geometry:
    """The shape of a model's state: per layer `num_v_heads` matrices of head_v_dim x head_k_dim.

    A key head serves `num_v_heads / num_k_heads` value heads (in Mamba-2 it is a B/C group). In GLA
    `shared_values` heads write the same values. The short convolution has the channels of
    `conv_key_heads` and `conv_value_heads` heads, and keeps its last `conv_width` inputs.

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

    def validate(self) -> None:
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
    def widest(self) -> Shape:
        """The largest key width and the largest value width of all layers."""
        return Shape(self.head_k_dim, self.head_v_dim)

    @property
    def shapes(self) -> dict[int, Shape]:
        """Layer -> the shape of its heads."""
        widths = self.widths or (self.widest,) * len(self.layers)
        return {layer: Shape(*w) for layer, w in zip(self.layers, widths, strict=True)}

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
        return self.shape if same_heads else f"{count_of(self.num_v_heads, 'head')} of {self.shape}"

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
        return self.num_v_heads * sum(keys * values for keys, values in self.shapes.values())

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
        """A geometry with these (key width, value width), those of every layer; no `widths` if all
        are equal."""
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

    def heads(self, axis: ChannelAxis) -> int:
        """Number of heads that select channels along this axis independently."""
        return self.num_k_heads if axis == "key" else self.num_v_heads // self.shared_values

    def width(self, axis: ChannelAxis) -> int:
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


def contains(larger: Geometry, smaller: Geometry) -> bool:
    """Whether `larger` has the same layers, and as many heads and channels of each kind or more."""
    shapes = zip(larger.shapes.values(), smaller.shapes.values(), strict=False)
    return (
        larger.layers == smaller.layers
        and larger.num_k_heads >= smaller.num_k_heads
        and larger.num_v_heads >= smaller.num_v_heads
        and all(shape.contains(other) for shape, other in shapes)
    )


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
        choices = choices_text(counts)
        if len(counts) > 8:
            choices = f"one of {', '.join(map(str, counts[:4]))}, ..., {counts[-1]}"
        raise StatetrimError(
            f"cannot keep {heads} of {num_heads} value heads, {geometry.group} to each of "
            f"{geometry.num_k_heads} key heads; give {choices}, or a part such as 50%heads"
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


@dataclass(frozen=True)
class Target:
    """The geometry before and after pruning."""

    before: Geometry
    after: Geometry

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes that are cut in at least one layer; heads are chosen before channels."""
        before, after = self.before.shapes.values(), self.after.shapes.values()
        is_cut: dict[Axis, bool] = {
            "head": self.before.num_v_heads != self.after.num_v_heads,
            "key": [keys for keys, _ in before] != [keys for keys, _ in after],
            "value": [values for _, values in before] != [values for _, values in after],
        }
        return tuple(axis for axis in is_cut if is_cut[axis])

    @property
    def share(self) -> float:
        """The part of the state's bytes that is kept."""
        return self.after.state_numel / self.before.state_numel

    def __str__(self) -> str:
        """What is kept, as `parse_request` reads it."""
        parts = [f"{self.after.num_v_heads}heads"] if "head" in self.axes else []
        if self.after.widths:
            shapes = self.after.shapes.items()
            parts.append(",".join(f"{layer}={k}x{v}" for layer, (k, v) in shapes))
        elif self.axes != ("head",):
            parts.append(f"{self.after.head_k_dim}x{self.after.head_v_dim}")
        return ":".join(parts)
