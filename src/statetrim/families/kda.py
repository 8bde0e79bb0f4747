"""Kimi Delta Attention (fla), also preconditioned: every key channel has its own decay gate."""

from ..cut.geometry import Geometry
from ..cut.rows import ChannelRows, head_rows_from_channels, per_head_rows, row_indices
from ._fla import (
    HEAD_GATES,
    PRECONDITIONER_TENSORS,
    PROJECTIONS,
    output_rows,
    projection_rows,
    query_key_rows,
)
from ._refused import GATE_RANK_REFUSAL
from .contract import Config
from .gated_deltanet import HeadDimFamily
from .recurrences import Recurrence, delta_rule


class KDA(HeadDimFamily):
    model_types = ("kda", "precond_kda")
    portable_types = ("kda",)
    unchanged_tensors = (
        *(name for name in HEAD_GATES if name != "dt_bias"), *PRECONDITIONER_TENSORS,
        "v_proj.weight", "v_conv1d.weight", "v_conv1d.bias", "o_norm.weight", "f_proj.0.weight",
        "g_proj.0.weight", "g_proj.1.weight", "g_proj.1.bias",
    )  # fmt: skip
    kernels = (
        "chunk_kda", "fused_recurrent_kda", "chunk_precond_kda", "fused_recurrent_precond_kda",
    )  # fmt: skip
    projections = (*PROJECTIONS, "b_atk_proj", "f_proj.0", "f_proj.1", "g_proj.0", "g_proj.1")

    default_layers, default_heads, default_head_dim, default_expand_v = 24, 16, 128, 1.0

    def channel_rows(self, config: Config, geometry: Geometry) -> list[ChannelRows]:
        """Rows of queries, keys and their decay gates, and `output_rows`."""
        # A gate row per value head and key channel; value head u reads key head u // group.
        dim, stride = geometry.head_k_dim, geometry.group * geometry.head_k_dim
        gates = []
        for name in ("f_proj.1.weight", "dt_bias"):
            for start in range(0, stride, dim):
                table = row_indices(geometry.num_k_heads, dim, start, stride)
                gates.append(ChannelRows(name, "gate", table, geometry.num_v_heads * dim))
        return [*query_key_rows(geometry), *gates, output_rows(geometry)]

    def head_rows(self, config: Config, geometry: Geometry) -> list[ChannelRows]:
        heads = geometry.num_v_heads
        key_table = row_indices(heads, geometry.head_k_dim)
        value_table = row_indices(heads, geometry.head_v_dim)
        gate_tables = {
            "f_proj.1.weight": key_table,
            "dt_bias": key_table,
            "g_proj.1.weight": value_table,
            "g_proj.1.bias": value_table,
        }
        gates = [
            ChannelRows(name, "gate", table, table.numel(), axis="value", optional=True)
            for name, table in gate_tables.items()
        ]
        channels = [entry for entry in self.channel_rows(config, geometry) if entry.role != "gate"]
        return head_rows_from_channels(
            channels,
            projection_rows(geometry, "v", value_table, value_table.numel()),
            gates,
            per_head_rows(("A_log", "b_proj.weight"), heads),
        )

    def value_refusal(self, config: Config) -> str | None:
        return GATE_RANK_REFUSAL

    def recurrence(self, kernel: str) -> Recurrence | None:
        return None if "precond" in kernel else delta_rule


FAMILY = KDA()
