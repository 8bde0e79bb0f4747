"""Shared by the families of fla models: separate q, k and v projections and convolutions, whose
rows are ordered by head, then channel."""

import math
from typing import ClassVar, TypedDict

from torch import Tensor

from ..cut.geometry import Geometry
from ..cut.rows import ChannelRows, Role, head_rows_from_channels, per_head_rows, row_indices
from ..cut.shape import ChannelAxis
from ..errors import StatetrimError
from ..maths.units import is_integer_list
from .contract import (
    NO_KV_CACHE,
    Config,
    Family,
    KVCacheSize,
    RuntimeName,
    bool_field,
    int_field,
    layers_of_type,
    num_layers,
)
from .recurrences import Recurrence, delta_rule

PROJECTIONS = tuple(f"{name}_proj" for name in "qkvogab")

HEAD_GATES = ("b_proj.weight", "a_proj.weight", "A_log", "dt_bias")
"""Tensors of the write strength and the decay, with one row or number per head."""

CONCATENATED_CONVOLUTIONS = {
    "conv1d.weight": ("q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"),
}
"""`concatenated_parameters` of transformers' models whose convolutions are stored as in fla."""


class FlaFamily(Family):
    """A model of fla, which `statetrim.portable` runs as well."""

    mixer_prefixes = ("model.layers.{layer}.attn",)
    unchanged_tensors: ClassVar[tuple[str, ...]] = HEAD_GATES
    projections = PROJECTIONS

    def channel_rows(self, config: Config, geometry: Geometry) -> list[ChannelRows]:
        return query_key_rows(geometry) + value_rows(geometry)

    def head_rows(self, config: Config, geometry: Geometry) -> list[ChannelRows]:
        gates = per_head_rows(HEAD_GATES, geometry.num_v_heads)
        return head_rows_from_channels(self.channel_rows(config, geometry), gates)

    def runtimes(self, config: Config) -> tuple[RuntimeName, ...]:
        return ("fla", "portable")

    def recurrence(self, kernel: str) -> Recurrence:
        return delta_rule

    def kv_cache_size(self, config: Config, geometry: Geometry) -> KVCacheSize | None:
        return NO_KV_CACHE if config.get("attn") is None else None  # window sizes are unknown


def linear_layers(config: Config, default_total: int) -> tuple[int, ...]:
    """All layers except the softmax layers that `attn` (an object or a list of objects) lists.
    Refuses a config without linear layers."""
    softmax_layers: set[int] = set()
    attn = config.get("attn")
    for attn_config in attn if isinstance(attn, list) else [attn]:
        if attn_config is None:
            continue
        layers = attn_config.get("layers") if isinstance(attn_config, dict) else None
        if not is_integer_list(layers):
            raise StatetrimError("config field 'attn' must name the softmax 'layers' as integers")
        softmax_layers.update(layers or [])
    total = num_layers(config, default_total)
    return layers_of_type(["other" if i in softmax_layers else "fla" for i in range(total)], "fla")


class ConvFields(TypedDict, total=False):
    """Keyword arguments of `Geometry` for the short convolution."""

    conv_key_heads: int
    conv_value_heads: int
    conv_width: int


def conv_fields(config: Config, key_heads: int, value_heads: int) -> ConvFields:
    """The convolution fields of `Geometry`; empty for a model without short convolutions."""
    if not bool_field(config, "use_short_conv", True):
        return {}
    width = int_field(config, "conv_size", default=4)
    return {"conv_key_heads": key_heads, "conv_value_heads": value_heads, "conv_width": width}


_ROLES: dict[str, tuple[Role, Role, Role]] = {
    "q": ("q_proj", "q_conv", "q_bias"),
    "k": ("k_proj", "k_conv", "k_bias"),
    "v": ("v_proj", "v_conv", "v_bias"),
}
"""Roles of a projection, and of the weight and the bias of its convolution."""


def projection_rows(geometry: Geometry, letter: str, table: Tensor) -> list[ChannelRows]:
    """Channel rows of the projection of q, k or v (`letter`) and, if the model has one, its
    convolution: the indices `table` [heads, channels] of all rows."""
    axis: ChannelAxis = "value" if letter == "v" else "key"
    size = table.numel()
    proj, conv, bias = _ROLES[letter]
    channel_rows = [ChannelRows(f"{letter}_proj.weight", proj, table, size, axis)]
    if geometry.conv_width:
        channel_rows += [
            ChannelRows(f"{letter}_conv1d.weight", conv, table, size, axis),
            ChannelRows(f"{letter}_conv1d.bias", bias, table, size, axis, optional=True),
        ]
    return channel_rows


def query_key_rows(geometry: Geometry) -> list[ChannelRows]:
    """Channel rows of q_proj, k_proj and their convolutions."""
    table = row_indices(geometry.num_k_heads, geometry.head_k_dim)
    return [*projection_rows(geometry, "q", table), *projection_rows(geometry, "k", table)]


def value_rows(geometry: Geometry) -> list[ChannelRows]:
    """Channel rows of v_proj, its convolution, the output gate, the norm and the columns of
    o_proj."""
    heads, dim = geometry.num_v_heads, geometry.head_v_dim
    table = row_indices(heads, dim)
    return [
        ChannelRows("g_proj.weight", "gate", table, heads * dim, axis="value", optional=True),
        ChannelRows("o_norm.weight", "shared_norm", row_indices(1, dim), dim, axis="value"),
        output_rows(geometry),
        *projection_rows(geometry, "v", table),
    ]


def output_rows(geometry: Geometry) -> ChannelRows:
    """The columns of o_proj. A family that cannot prune values lists of them only these, which
    calibration needs."""
    table = row_indices(geometry.num_v_heads, geometry.head_v_dim)
    return ChannelRows("o_proj.weight", "o_proj", table, table.numel(), axis="value", dim=1)


def head_v_dim(head_k_dim: int, expand_v: float) -> int:
    """`head_dim * expand_v`, truncated as by fla; refuses a product that is not whole."""
    width = int(head_k_dim * expand_v)
    if not math.isclose(width, head_k_dim * expand_v, rel_tol=1e-5):
        raise StatetrimError(
            f"config field 'expand_v' = {expand_v} times 'head_dim' = {head_k_dim} is not a whole "
            f"number, so fla would not build this model"
        )
    return width


def expand_v(head_k_dim: int, head_v_dim: int) -> float:
    """The `expand_v` from which fla computes `head_v_dim`. fla truncates the product, so the plain
    ratio may be too small by one rounding step."""
    ratio = head_v_dim / head_k_dim
    return ratio if int(head_k_dim * ratio) == head_v_dim else math.nextafter(ratio, math.inf)
