"""Shared by the families of fla models: separate q, k and v projections and convolutions, whose
rows are ordered by head, then channel."""

import math
from typing import ClassVar, TypedDict

from torch import Tensor

from ..cut.geometry import Geometry
from ..cut.rows import ChannelRows, Role, row_indices
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

PROJECTIONS = tuple(f"{name}_proj" for name in "qkvogab")

HEAD_GATES = ("b_proj.weight", "a_proj.weight", "A_log", "dt_bias")
"""Tensors of the write strength and the decay, with one row or number per head."""

PRECONDITIONER_TENSORS = (
    "a_atk_proj.weight", "b_atk_proj.weight", "log_atk_scale", "A_log_atk", "dt_bias_atk",
)  # fmt: skip
"""Tensors of preconditioned delta rules, with numbers per head. The preconditioner they control is
computed for each key channel separately, so pruning channels leaves these tensors unchanged."""

CONCATENATED_CONVOLUTIONS = {
    "conv1d.weight": ("q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"),
}
"""`concatenated_parameters` of transformers' models whose convolutions are stored as in fla."""


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


def conv_fields(
    config: Config, key_heads: int, value_heads: int, *, default: bool = True
) -> ConvFields:
    """The convolution fields of `Geometry`; empty for a model without short convolutions."""
    if not bool_field(config, "use_short_conv", default):
        return {}
    width = int_field(config, "conv_size", default=4)
    return {"conv_key_heads": key_heads, "conv_value_heads": value_heads, "conv_width": width}


_ROLES: dict[str, tuple[Role, Role, Role]] = {
    "q": ("q_proj", "q_conv", "q_bias"),
    "k": ("k_proj", "k_conv", "k_bias"),
    "v": ("v_proj", "v_conv", "v_bias"),
}
"""Roles of a projection, and of the weight and the bias of its convolution."""


def projection_rows(geometry: Geometry, letter: str, table: Tensor, size: int) -> list[ChannelRows]:
    """Channel rows of the projection of q, k or v (`letter`) and, if the model has one, its
    convolution: the indices `table` [heads, channels] of `size` rows."""
    axis: ChannelAxis = "value" if letter == "v" else "key"
    proj, conv, bias = _ROLES[letter]
    channel_rows = [ChannelRows(f"{letter}_proj.weight", proj, table, size, axis)]
    if geometry.conv_width:
        channel_rows += [
            ChannelRows(f"{letter}_conv1d.weight", conv, table, size, axis),
            ChannelRows(f"{letter}_conv1d.bias", bias, table, size, axis, optional=True),
        ]
    return channel_rows


def query_key_rows(geometry: Geometry, steps: int = 1) -> list[ChannelRows]:
    """Channel rows of q_proj, k_proj and their convolutions; k_proj concatenates `steps` key
    projections (the Householder steps of DeltaProduct), which keep the same channels."""
    table = row_indices(geometry.num_k_heads, geometry.head_k_dim)
    block = table.numel()
    channel_rows = projection_rows(geometry, "q", table, block)
    for step in range(steps):
        channel_rows += projection_rows(geometry, "k", table + step * block, steps * block)
    return channel_rows


def value_rows(geometry: Geometry, steps: int = 1) -> list[ChannelRows]:
    """Channel rows of v_proj, its convolution, the output gate, the norm and the columns of o_proj;
    v_proj concatenates `steps` value projections (the Householder steps of DeltaProduct)."""
    heads, dim = geometry.num_v_heads, geometry.head_v_dim
    table, block = row_indices(heads, dim), heads * dim
    channel_rows = [
        ChannelRows("g_proj.weight", "gate", table, block, axis="value", optional=True),
        ChannelRows("o_norm.weight", "shared_norm", row_indices(1, dim), dim, axis="value"),
        output_rows(geometry),
    ]
    for step in range(steps):
        channel_rows += projection_rows(geometry, "v", table + step * block, steps * block)
    return channel_rows


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
