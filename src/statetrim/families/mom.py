"""Mixture of Memories (fla): Gated DeltaNet with several states per head, one for each memory and
one that all tokens share. Memories have their own keys and values but the same queries, so all keep
the same channels."""

from dataclasses import replace

from ..cut.geometry import Geometry
from ..cut.rows import ChannelRows
from ._fla import (
    PROJECTIONS,
    FlaFamily,
    conv_fields,
    head_v_dim,
    linear_layers,
    query_key_rows,
    value_rows,
)
from .contract import Config, bool_field, float_field, int_field

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
            head_v_dim=head_v_dim(dim, float_field(config, "expand_v", 1.0), round, 1e-9),
            copies=num_states,
            **conv_fields(config, 2 * heads * num_states, heads * num_states),
        )

    def channel_rows(self, config: Config, geometry: Geometry) -> list[ChannelRows]:
        """As of Gated DeltaNet, with keys and values of every memory and of the shared one; only of
        the shared one with `single_kv_proj`."""
        is_single = bool_field(config, "single_kv_proj", False)
        has_shared = is_single or bool_field(config, "shared_mem", True)
        memories = range(0 if is_single else _num_memories(config))
        channel_rows = []
        for entry in query_key_rows(geometry) + value_rows(geometry):
            names = [entry.tensor]
            if entry.role in ("k_proj", "v_proj"):
                names = [f"{entry.role}.{i}.weight" for i in memories]
                names += [f"shared_{entry.role[0]}.weight"] if has_shared else []
            channel_rows += [replace(entry, tensor=name) for name in names]
        return channel_rows

    def resized(self, config: Config, geometry: Geometry) -> Config:
        ratio = geometry.head_v_dim / geometry.head_k_dim  # fla rounds the product
        return config | {"head_dim": geometry.head_k_dim, "expand_v": ratio}


def _num_memories(config: Config) -> int:
    return int_field(config, "num_memories", default=4, maximum=_MAX_MEMORIES)


FAMILY = MoM()
