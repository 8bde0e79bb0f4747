"""Mixture of Memories (fla): Gated DeltaNet with several states per head, one for each memory and
one that all tokens share. Memories have their own keys and values but the same queries, so all keep
the same channels."""

from ...errors import StatetrimError
from ...geometry import Axis, ChannelRows, Geometry, Role, row_indices
from .._fla import PROJECTIONS, FlaFamily, conv_fields, linear_layers
from ..contract import Config, bool_field, float_field, int_field

_MAX_MEMORIES = 64


class MoM(FlaFamily):
    model_types = ("mom",)
    unchanged_tensors = (
        "gate.weight",
        "A_log",
        "dt_bias",
        "shared_a.weight",
        "shared_b.weight",
        *(f"{name}_proj.{i}.weight" for name in "ab" for i in range(_MAX_MEMORIES)),
    )
    kernels = ("chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule")
    state_key_axis = -1
    projections = (
        *PROJECTIONS,
        "gate",
        *(f"shared_{name}" for name in "kvab"),
        *(f"{name}_proj.{i}" for name in "kvab" for i in range(_MAX_MEMORIES)),
    )

    def geometry(self, config: Config) -> Geometry:
        heads = int_field(config, "num_heads", default=4)
        dim = int_field(config, "head_dim", default=256)
        num_states = _num_memories(config) + bool_field(config, "shared_mem", True)
        return Geometry(
            layers=linear_layers(config, default_total=24),
            num_k_heads=heads,
            num_v_heads=heads,
            head_k_dim=dim,
            head_v_dim=_head_v_dim(dim, float_field(config, "expand_v", 1.0)),
            copies=num_states,
            **conv_fields(config, 2 * heads * num_states, heads * num_states),
        )

    def channel_rows(self, config: Config, geometry: Geometry) -> list[ChannelRows]:
        dim = geometry.head_v_dim
        table = row_indices(geometry.num_v_heads, dim)
        size = table.numel()
        return [
            _contiguous_rows(geometry, "q_proj.weight", "q_proj"),
            *_memory_projection_rows(config, geometry, "k", "key", "k_proj"),
            *_memory_projection_rows(config, geometry, "v", "value", "v_proj"),
            *_conv_rows(geometry, "q_conv1d", "q_conv", "q_bias"),
            *_conv_rows(geometry, "k_conv1d", "k_conv", "k_bias"),
            *_conv_rows(geometry, "v_conv1d", "v_conv", "v_bias", "value"),
            ChannelRows("g_proj.weight", "gate", table, size, axis="value", optional=True),
            ChannelRows("o_norm.weight", "shared_norm", row_indices(1, dim), dim, axis="value"),
            ChannelRows("o_proj.weight", "o_proj", table, size, axis="value", dim=1),
        ]

    def resized(self, config: Config, geometry: Geometry) -> Config:
        ratio = geometry.head_v_dim / geometry.head_k_dim  # fla rounds the product
        return config | {"head_dim": geometry.head_k_dim, "expand_v": ratio}


def _num_memories(config: Config) -> int:
    return int_field(config, "num_memories", default=4, maximum=_MAX_MEMORIES)


def _memory_projection_rows(
    config: Config, geometry: Geometry, letter: str, axis: Axis, role: Role
) -> list[ChannelRows]:
    """Rows of the key or value (`letter`) projections of every memory and of the shared one; only
    of the shared one with `single_kv_proj`."""
    is_single = bool_field(config, "single_kv_proj", False)
    names = [] if is_single else [f"{letter}_proj.{i}.weight" for i in range(_num_memories(config))]
    if is_single or bool_field(config, "shared_mem", True):
        names.append(f"shared_{letter}.weight")
    return [_contiguous_rows(geometry, name, role, axis) for name in names]


def _conv_rows(
    geometry: Geometry, name: str, weight_role: Role, bias_role: Role, axis: Axis = "key"
) -> list[ChannelRows]:
    """Rows of a convolution's weight, and of its bias, which a checkpoint may lack."""
    return [
        _contiguous_rows(geometry, f"{name}.weight", weight_role, axis),
        _contiguous_rows(geometry, f"{name}.bias", bias_role, axis, optional=True),
    ]


def _contiguous_rows(
    geometry: Geometry, name: str, role: Role, axis: Axis = "key", *, optional: bool = False
) -> ChannelRows:
    """Rows of a tensor that has only the channels of this axis, ordered by head, then channel."""
    table = row_indices(geometry.heads(axis), geometry.width(axis))
    return ChannelRows(name, role, table, table.numel(), axis=axis, optional=optional)


def _head_v_dim(dim: int, expand: float) -> int:
    """`round(head_dim * expand_v)`; refuses a product that is not whole, as fla does."""
    width = round(dim * expand)
    if width < 1 or abs(width - dim * expand) > 1e-9 * width:
        raise StatetrimError(
            f"config field 'expand_v' = {expand} times 'head_dim' = {dim} is not a whole number, "
            f"so fla would not build this model"
        )
    return width


FAMILY = MoM()
