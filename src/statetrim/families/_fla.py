"""Shared by the families of fla models: separate q, k and v projections and convolutions, whose
rows are ordered by head, then channel."""

import math
from typing import ClassVar, TypedDict

from torch import Tensor

from ..errors import StatetrimError
from ..geometry import ChannelRows, Geometry, Role, row_indices
from ..maths.units import is_integer_list
from .contract import (
    NO_KV_CACHE,
    Config,
    Family,
    KVCacheSize,
    RuntimeName,
    bool_field,
    int_field,
    num_layers,
)

PROJECTIONS = tuple(f"{name}_proj" for name in "qkvogab")

HEAD_GATES = ("b_proj.weight", "a_proj.weight", "A_log", "dt_bias")
"""Tensors of the write strength and the decay, with one row or number per head."""

PRECONDITIONER_TENSORS = (
    "a_atk_proj.weight",
    "b_atk_proj.weight",
    "log_atk_scale",
    "A_log_atk",
    "dt_bias_atk",
)
"""Tensors of preconditioned delta rules, with numbers per head. The preconditioner they control is
computed for each key channel separately, so pruning channels leaves these tensors unchanged."""

PRECONDITIONER_HEAD_REFUSAL = "how its preconditioner's numbers belong to heads is not worked out"


class FlaFamily(Family):
    """A model of fla. `statetrim.portable` runs the model types in `portable_types` as well; fla's
    chunked kernel for the types in `half_precision_types` rejects float32."""

    mixer_prefixes = ("model.layers.{layer}.attn",)
    projections = PROJECTIONS
    portable_types: ClassVar[tuple[str, ...]] = ()
    half_precision_types: ClassVar[tuple[str, ...]] = ()

    def runtimes(self, config: Config) -> tuple[RuntimeName, ...]:
        has_portable = config.get("model_type") in self.portable_types
        return ("fla", "portable") if has_portable else ("fla",)

    def refuses_float32(self, config: Config) -> bool:
        return config.get("model_type") in self.half_precision_types

    def kv_cache_size(self, config: Config, geometry: Geometry) -> KVCacheSize | None:
        return NO_KV_CACHE if config.get("attn") is None else None  # window sizes are unknown


def linear_layers(config: Config, default_total: int) -> tuple[int, ...]:
    """All layers except the softmax layers that `attn` (an object or a list of objects) lists.
    Refuses a config without linear layers."""
    total = num_layers(config, default_total)
    softmax_layers: set[int] = set()
    attn = config.get("attn")
    for attn_config in attn if isinstance(attn, list) else [attn]:
        if attn_config is None:
            continue
        layers = attn_config.get("layers") if isinstance(attn_config, dict) else None
        if not is_integer_list(layers):
            raise StatetrimError("config field 'attn' must name the softmax 'layers' as integers")
        softmax_layers.update(layers or [])
    linear_layer_indices = tuple(layer for layer in range(total) if layer not in softmax_layers)
    if not linear_layer_indices:
        raise StatetrimError("this config lists no linear-attention layer, so there is no state")
    return linear_layer_indices


class ConvFields(TypedDict, total=False):
    """Keyword arguments of `Geometry` for the short convolution."""

    conv_key_heads: int
    conv_value_heads: int
    conv_width: int


def conv_fields(
    config: Config, key_heads: int, value_heads: int, *, default: bool = True
) -> ConvFields:
    """The convolution fields of `Geometry`; empty for a model without short convolutions."""
    if not bool_field(config, "use_short_conv", default):
        return {}
    width = int_field(config, "conv_size", default=4)
    return {"conv_key_heads": key_heads, "conv_value_heads": value_heads, "conv_width": width}


_CONV_ROLES: dict[Role, tuple[str, Role, Role]] = {
    "q_proj": ("q_conv1d", "q_conv", "q_bias"),
    "k_proj": ("k_conv1d", "k_conv", "k_bias"),
}
"""Role of a projection -> its convolution's name and the roles of that weight and bias."""


def query_key_rows(geometry: Geometry, steps: int = 1) -> list[ChannelRows]:
    """Channel rows of q_proj and k_proj and, if the model has them, their convolutions.

    k_proj concatenates `steps` key projections (the Householder steps of DeltaProduct), which keep
    the same channels.
    """
    heads, dim = geometry.num_k_heads, geometry.head_k_dim
    block = heads * dim
    channel_rows = [ChannelRows("q_proj.weight", "q_proj", row_indices(heads, dim), block)]
    for step in range(steps):
        table, size = row_indices(heads, dim, start=step * block), steps * block
        channel_rows.append(ChannelRows("k_proj.weight", "k_proj", table, size))
    if geometry.conv_width:
        for entry in list(channel_rows):
            name, weight_role, bias_role = _CONV_ROLES[entry.role]
            channel_rows += [
                ChannelRows(f"{name}.weight", weight_role, entry.rows, entry.size),
                ChannelRows(f"{name}.bias", bias_role, entry.rows, entry.size, optional=True),
            ]
    return channel_rows


def value_rows(geometry: Geometry, steps: int = 1) -> list[ChannelRows]:
    """Channel rows of v_proj, its convolution, the output gate, the norm and the columns of o_proj.

    v_proj concatenates `steps` value projections (the Householder steps of DeltaProduct).
    """
    heads, dim = geometry.num_v_heads, geometry.head_v_dim
    table, block = row_indices(heads, dim), heads * dim
    channel_rows = [
        ChannelRows("g_proj.weight", "gate", table, block, axis="value", optional=True),
        ChannelRows("o_norm.weight", "shared_norm", row_indices(1, dim), dim, axis="value"),
        ChannelRows("o_proj.weight", "o_proj", table, block, axis="value", dim=1),
    ]
    for step in range(steps):
        channel_rows += v_proj_rows(geometry, table + step * block, steps * block)
    return channel_rows


def v_proj_rows(geometry: Geometry, table: Tensor, size: int) -> list[ChannelRows]:
    """Channel rows of v_proj and, if the model has one, its convolution: the indices `table`
    [heads, channels] of `size` rows."""
    channel_rows = [ChannelRows("v_proj.weight", "v_proj", table, size, axis="value")]
    if geometry.conv_width:
        channel_rows += [
            ChannelRows("v_conv1d.weight", "v_conv", table, size, axis="value"),
            ChannelRows("v_conv1d.bias", "v_bias", table, size, axis="value", optional=True),
        ]
    return channel_rows


def head_v_dim(config: Config, head_k_dim: int, expand_v: float) -> int:
    """`int(head_dim * expand_v)`, as fla computes it; refuses a product that is not whole."""
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
