"""Gated Linear Attention (fla): query heads may share a key head; key channels have decay gates."""

from dataclasses import replace

from ..cut.geometry import Geometry
from ..cut.rows import ChannelRows, head_rows_from_channels, row_indices
from ._fla import HEAD_GATES, PROJECTIONS, FlaFamily, conv_fields, linear_layers, projection_rows
from .contract import Config, int_field
from .delta_net import head_dim


class GLA(FlaFamily):
    model_types = ("gla",)
    unchanged_tensors = (*HEAD_GATES, "gk_proj.0.weight")
    kernels = ("chunk_gla", "fused_chunk_gla", "fused_recurrent_gla")
    normalizes_keys = False
    projections = (*PROJECTIONS, "gk_proj.0", "gk_proj.1")

    def geometry(self, config: Config) -> Geometry:
        heads = int_field(config, "num_heads", default=4)
        key_heads = int_field(config, "num_kv_heads", default=heads)
        return Geometry(
            layers=linear_layers(config, default_total=24),
            num_k_heads=key_heads,
            num_v_heads=heads,  # keys and values are repeated: one state per query head
            head_k_dim=head_dim(config, "expand_k", heads, default=0.5),
            head_v_dim=head_dim(config, "expand_v", heads),
            shared_values=heads // key_heads or 1,
            **conv_fields(config, heads + key_heads, key_heads, default=False),
        )

    def channel_rows(self, config: Config, geometry: Geometry) -> list[ChannelRows]:
        """All query heads of a key head keep its channels. v_proj has one block per group of heads
        that share values; the gate and o_proj have one per head."""
        heads, dim, group = geometry.num_k_heads, geometry.head_k_dim, geometry.group
        keys = row_indices(heads, dim)
        channel_rows = projection_rows(geometry, "k", keys, keys.numel())
        for name in ("gk_proj.1.weight", "gk_proj.1.bias"):
            channel_rows.append(ChannelRows(name, "gate", keys, keys.numel()))
        for start in range(0, group * dim, dim):
            table = row_indices(heads, dim, start, stride=group * dim)
            channel_rows += projection_rows(geometry, "q", table, group * keys.numel())
        heads, dim, group = geometry.heads("value"), geometry.head_v_dim, geometry.shared_values
        values = row_indices(heads, dim)
        channel_rows += projection_rows(geometry, "v", values, values.numel())
        size = geometry.num_v_heads * dim
        for start in range(0, group * dim, dim):
            table = row_indices(heads, dim, start, stride=group * dim)
            channel_rows += [
                ChannelRows("g_proj.weight", "gate", table, size, axis="value", optional=True),
                ChannelRows("o_proj.weight", "o_proj", table, size, axis="value", dim=1),
            ]
        # The name depends on whether fla fuses norm and gate; a norm may also have no weight.
        norm = ChannelRows("g_norm.weight", "shared_norm", row_indices(1, dim), dim, axis="value")
        for name in ("g_norm_swish_gate.weight", "g_norm.weight"):
            channel_rows.append(replace(norm, tensor=name, optional=True))
        return channel_rows

    def head_rows(self, config: Config, geometry: Geometry) -> list[ChannelRows]:
        """Rows by key head, all with axis "key": a key head is removed with all query heads that
        read it, and with their values."""
        entries = self.channel_rows(config, geometry)
        return head_rows_from_channels([replace(entry, axis="key") for entry in entries])

    def resized(self, config: Config, geometry: Geometry) -> Config:
        hidden = int_field(config, "hidden_size", default=2048)
        grouped = config.get("num_kv_heads") is not None
        return config | {
            "num_heads": geometry.num_v_heads,
            **({"num_kv_heads": geometry.num_k_heads} if grouped else {}),
            "expand_k": geometry.num_v_heads * geometry.head_k_dim / hidden,
            "expand_v": geometry.num_v_heads * geometry.head_v_dim / hidden,
        }


FAMILY = GLA()
