"""Mixture of Memories (fla): Gated DeltaNet with several states a head, one for each memory and one
that all tokens share. Memories have their own keys and values but the same queries, so all keep the
same channels."""

from ...errors import StatetrimError
from ...geometry import Axis, ChannelRows, Geometry, Role, row_indices
from .._fla import PROJECTIONS, FlaFamily, conv_fields, linear_layers
from ..contract import MOST_CHANNELS, MOST_HEADS, Config, checked, count, flag, number

_MOST_MEMORIES = 64


class MoM(FlaFamily):
    model_types = ("mom",)
    untouched = (
        "gate.weight",
        "A_log",
        "dt_bias",
        "shared_a.weight",
        "shared_b.weight",
        *(f"{name}_proj.{i}.weight" for name in "ab" for i in range(_MOST_MEMORIES)),
    )
    kernels = ("chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule")
    state_key_axis = -1
    projections = (
        *PROJECTIONS,
        "gate",
        *(f"shared_{name}" for name in "kvab"),
        *(f"{name}_proj.{i}" for name in "kvab" for i in range(_MOST_MEMORIES)),
    )

    def geometry(self, config: Config) -> Geometry:
        heads = count(config, "num_heads", default=4, most=MOST_HEADS)
        dim = count(config, "head_dim", default=256, most=MOST_CHANNELS)
        states = _memories(config) + flag(config, "shared_mem", True)
        return checked(
            Geometry(
                layers=linear_layers(config, default=24),
                num_k_heads=heads,
                num_v_heads=heads,
                head_k_dim=dim,
                head_v_dim=_head_v_dim(dim, number(config, "expand_v", 1.0)),
                copies=states,
                **conv_fields(config, 2 * heads * states, heads * states),
            )
        )

    def channels(self, config: Config, geometry: Geometry) -> list[ChannelRows]:
        dim = geometry.head_v_dim
        table = row_indices(geometry.num_v_heads, dim)
        size = table.numel()
        return [
            *_claims(geometry, "q_proj.weight", "q_proj"),
            *_written(config, geometry, "k", "key", "k_proj"),
            *_written(config, geometry, "v", "value", "v_proj"),
            *_conv(geometry, "q_conv1d", "q_conv", "q_bias"),
            *_conv(geometry, "k_conv1d", "k_conv", "k_bias"),
            *_conv(geometry, "v_conv1d", "v_conv", "v_bias", "value"),
            ChannelRows("g_proj.weight", "gate", table, size, axis="value", optional=True),
            ChannelRows("o_norm.weight", "shared_norm", row_indices(1, dim), dim, axis="value"),
            ChannelRows("o_proj.weight", "o_proj", table, size, axis="value", dim=1),
        ]

    def resized(self, config: Config, geometry: Geometry) -> Config:
        ratio = geometry.head_v_dim / geometry.head_k_dim  # which fla rounds, so it comes out
        return config | {"head_dim": geometry.head_k_dim, "expand_v": ratio}


def _memories(config: Config) -> int:
    return count(config, "num_memories", default=4, most=_MOST_MEMORIES)


def _written(
    config: Config, geometry: Geometry, letter: str, axis: Axis, role: Role
) -> list[ChannelRows]:
    """The projections of what is written: of each memory, and of the one that is shared."""
    single = flag(config, "single_kv_proj", False)
    names = [] if single else [f"{letter}_proj.{i}.weight" for i in range(_memories(config))]
    if single or flag(config, "shared_mem", True):
        names.append(f"shared_{letter}.weight")
    return [claim for name in names for claim in _claims(geometry, name, role, axis)]


def _conv(
    geometry: Geometry, name: str, taps: Role, bias: Role, axis: Axis = "key"
) -> list[ChannelRows]:
    return [
        *_claims(geometry, f"{name}.weight", taps, axis),
        *_claims(geometry, f"{name}.bias", bias, axis, optional=True),
    ]


def _claims(
    geometry: Geometry, name: str, role: Role, axis: Axis = "key", *, optional: bool = False
) -> list[ChannelRows]:
    table = row_indices(geometry.heads(axis), geometry.width(axis))
    return [ChannelRows(name, role, table, table.numel(), axis=axis, optional=optional)]


def _head_v_dim(dim: int, expand: float) -> int:
    """`round(head_dim * expand_v)`, which fla requires to be next to it."""
    width = round(dim * expand)
    if width < 1 or abs(width - dim * expand) > 1e-9 * width:
        raise StatetrimError(
            f"config field 'expand_v' = {expand} times 'head_dim' = {dim} is not a whole number, "
            f"so fla would not build this model"
        )
    return width


FAMILY = MoM()
