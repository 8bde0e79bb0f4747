"""What fla's layers share: separate q, k, v projections and convolutions, packed head by head."""

import math
from typing import ClassVar, TypedDict

from torch import Tensor

from ..errors import StatetrimError
from ..geometry import ChannelRows, Geometry, row_indices
from ..maths.units import integers
from .contract import (
    MOST_LAYERS,
    NO_SOFTMAX,
    Config,
    Family,
    RuntimeName,
    SoftmaxCache,
    count,
    flag,
)

PROJECTIONS = tuple(f"{name}_proj" for name in "qkvogab")

HEAD_GATES = ("b_proj.weight", "a_proj.weight", "A_log", "dt_bias")
"""Write strength and decay: a number a head, whatever its channels."""


PRECONDITIONER = (
    "a_atk_proj.weight",
    "b_atk_proj.weight",
    "log_atk_scale",
    "A_log_atk",
    "dt_bias_atk",
)
"""Of preconditioned delta rules: numbers a head. What they weigh is kept for each key channel by
itself, so it goes with the channel."""

NO_HEADS = "how its preconditioner's numbers belong to heads is not worked out"


class FlaFamily(Family):
    """A model of fla. Of some, `portable_types`, there is code that runs without it; of some,
    `half_types`, the chunked kernel takes no float32."""

    mixers = ("model.layers.{layer}.attn",)
    projections = PROJECTIONS
    portable_types: ClassVar[tuple[str, ...]] = ()
    half_types: ClassVar[tuple[str, ...]] = ()

    def runtimes(self, config: Config) -> tuple[RuntimeName, ...]:
        portable = config.get("model_type") in self.portable_types
        return ("fla", "portable") if portable else ("fla",)

    def refuses_float32(self, config: Config) -> bool:
        return config.get("model_type") in self.half_types

    def softmax_cache(self, config: Config, geometry: Geometry) -> SoftmaxCache | None:
        return NO_SOFTMAX if config.get("attn") is None else None  # its windows are not known


def linear_layers(config: Config, default: int) -> tuple[int, ...]:
    """All layers, less those that `attn` (one specification or several) gives to softmax."""
    total = count(config, "num_hidden_layers", default=default, most=MOST_LAYERS)
    softmax: set[int] = set()
    attn = config.get("attn")
    for specification in attn if isinstance(attn, list) else [attn]:
        if specification is None:
            continue
        layers = specification.get("layers") if isinstance(specification, dict) else None
        if not integers(layers):
            raise StatetrimError("config field 'attn' must name the softmax 'layers' as integers")
        softmax.update(layers or [])
    linear = tuple(layer for layer in range(total) if layer not in softmax)
    if not linear:
        raise StatetrimError("this config lists no linear-attention layer, so there is no state")
    return linear


class ConvFields(TypedDict, total=False):
    conv_key_heads: int
    conv_value_heads: int
    conv_width: int


def conv_fields(
    config: Config, key_heads: int, value_heads: int, *, default: bool = True
) -> ConvFields:
    """Geometry's convolution fields; empty where the model has no short convolution."""
    if not flag(config, "use_short_conv", default):
        return {}
    width = count(config, "conv_size", default=4, most=1024)
    return {"conv_key_heads": key_heads, "conv_value_heads": value_heads, "conv_width": width}


def separate_projections(geometry: Geometry, key_copies: int = 1) -> list[ChannelRows]:
    """Claims on q_proj, k_proj and, where there is one, their convolutions and its biases.

    `key_copies` key projections stand one after the other in k_proj (DeltaProduct's Householder
    steps); they share the kept channels.
    """
    heads, dim = geometry.num_k_heads, geometry.head_k_dim
    block = heads * dim
    claims = [ChannelRows("q_proj.weight", "q_proj", row_indices(heads, dim), block)]
    for copy in range(key_copies):
        table, size = row_indices(heads, dim, start=copy * block), key_copies * block
        claims.append(ChannelRows("k_proj.weight", "k_proj", table, size))
    if geometry.conv_width:
        for claim in list(claims):
            q = claim.role == "q_proj"
            conv = "q_conv1d" if q else "k_conv1d"
            claims += [
                ChannelRows(f"{conv}.weight", "q_conv" if q else "k_conv", claim.rows, claim.size),
                ChannelRows(
                    f"{conv}.bias",
                    "q_bias" if q else "k_bias",
                    claim.rows,
                    claim.size,
                    optional=True,
                ),
            ]
    return claims


def separate_values(geometry: Geometry, copies: int = 1) -> list[ChannelRows]:
    """Claims on v_proj, its convolution, the output gate, the norm and the columns of o_proj.

    `copies` value projections stand one after the other in v_proj (DeltaProduct's steps).
    """
    heads, dim = geometry.num_v_heads, geometry.head_v_dim
    table, block = row_indices(heads, dim), heads * dim
    claims = [
        ChannelRows("g_proj.weight", "gate", table, block, axis="value", optional=True),
        ChannelRows("o_norm.weight", "shared_norm", row_indices(1, dim), dim, axis="value"),
        ChannelRows("o_proj.weight", "o_proj", table, block, axis="value", dim=1),
    ]
    for copy in range(copies):
        claims += value_projection(geometry, table + copy * block, copies * block)
    return claims


def value_projection(geometry: Geometry, table: Tensor, size: int) -> list[ChannelRows]:
    """Claims on v_proj and, where there is one, its convolution and that one's bias."""
    claims = [ChannelRows("v_proj.weight", "v_proj", table, size, axis="value")]
    if geometry.conv_width:
        claims += [
            ChannelRows("v_conv1d.weight", "v_conv", table, size, axis="value"),
            ChannelRows("v_conv1d.bias", "v_bias", table, size, axis="value", optional=True),
        ]
    return claims


def head_v_dim(config: Config, head_k_dim: int, expand_v: float) -> int:
    """`int(head_dim * expand_v)`, as fla computes it."""
    width = int(head_k_dim * expand_v)
    if not math.isclose(width, head_k_dim * expand_v, rel_tol=1e-5):
        raise StatetrimError(
            f"config field 'expand_v' = {expand_v} times 'head_dim' = {head_k_dim} is not a whole "
            f"number, so fla would not build this model"
        )
    return width


def expand_v(head_k_dim: int, head_v_dim: int) -> float:
    """The `expand_v` from which fla recovers `head_v_dim`; it truncates, so V/K may fall short."""
    ratio = head_v_dim / head_k_dim
    return ratio if int(head_k_dim * ratio) == head_v_dim else math.nextafter(ratio, math.inf)
