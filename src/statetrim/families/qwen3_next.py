"""Qwen3-Next: one projection for q, k, v and z, interleaved by key head."""

from ..cut.geometry import Geometry
from ..cut.rows import ChannelRows, head_rows_from_channels, per_head_rows, row_indices
from ._linear_fields import LinearFieldsFamily, contiguous_conv_rows, norm_and_output_rows
from .contract import Config, KVCacheSize, attention_kv_cache_size, num_softmax_layers


class Qwen3Next(LinearFieldsFamily):
    model_types = ("qwen3_next",)
    mixer_prefixes = ("model.layers.{layer}.linear_attn",)
    unchanged_tensors = ("in_proj_ba.weight", "A_log", "dt_bias")
    projections = ("in_proj_qkvz", "in_proj_ba", "out_proj")

    def channel_rows(self, config: Config, geometry: Geometry) -> list[ChannelRows]:
        # in_proj_qkvz, per key head: [ q | k | v of its value heads | z of its value heads ]
        heads, dim = geometry.num_k_heads, geometry.head_k_dim
        value_size = geometry.head_v_dim * geometry.num_v_heads // heads
        block = 2 * dim + 2 * value_size
        name, size = "in_proj_qkvz.weight", heads * block
        v = row_indices(heads, value_size, start=2 * dim, stride=block)
        v = v.reshape(-1, geometry.head_v_dim)
        z = v + value_size
        return [
            ChannelRows(name, "q_proj", row_indices(heads, dim, stride=block), size),
            ChannelRows(name, "k_proj", row_indices(heads, dim, start=dim, stride=block), size),
            ChannelRows(name, "v_proj", v, size, axis="value"),
            ChannelRows(name, "gate", z, size, axis="value"),
            *contiguous_conv_rows(geometry),
            *norm_and_output_rows(geometry),
        ]

    def head_rows(self, config: Config, geometry: Geometry) -> list[ChannelRows]:
        # in_proj_ba, per key head: [ b of its value heads | a of its value heads ]
        heads, group = geometry.num_k_heads, geometry.group
        b = row_indices(heads, group, stride=2 * group).reshape(-1, 1)
        a = b + group
        size = 2 * geometry.num_v_heads
        return head_rows_from_channels(
            self.channel_rows(config, geometry),
            [ChannelRows("in_proj_ba.weight", "gate", t, size, axis="value") for t in (b, a)],
            per_head_rows(("A_log", "dt_bias"), geometry.num_v_heads),
        )

    def kv_cache_size(self, config: Config, geometry: Geometry) -> KVCacheSize:
        layers = num_softmax_layers(config, geometry)
        return attention_kv_cache_size(config, layers, default_kv_heads=2, default_head_dim=256)


FAMILY = Qwen3Next()
