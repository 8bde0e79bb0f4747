"""Qwen3-Next: one projection for q, k, v and z, interleaved by key head."""

from ..geometry import ChannelRows, Geometry, row_indices
from ._heads import head_claims, one_each
from ._linear_fields import (
    LinearFieldsFamily,
    contiguous_q_k_v,
    linear_geometry,
    norm_and_output,
    resized_linear,
)
from .contract import Config, SoftmaxCache, attention_cache, other_layers


class Qwen3Next(LinearFieldsFamily):
    model_types = ("qwen3_next",)
    mixers = ("model.layers.{layer}.linear_attn",)
    untouched = (
        "in_proj_ba.weight",
        "A_log",
        "dt_bias",
    )
    projections = ("in_proj_qkvz", "in_proj_ba", "out_proj")

    def geometry(self, config: Config) -> Geometry:
        return linear_geometry(config)

    def channels(self, config: Config, geometry: Geometry) -> list[ChannelRows]:
        # in_proj_qkvz, per key head: [ q | k | v of its value heads | z of its value heads ]
        heads, dim = geometry.num_k_heads, geometry.head_k_dim
        values = geometry.head_v_dim * geometry.num_v_heads // heads
        block = 2 * dim + 2 * values
        name, size = "in_proj_qkvz.weight", heads * block
        v, z = (
            row_indices(heads, values, start, stride=block).reshape(-1, geometry.head_v_dim)
            for start in (2 * dim, 2 * dim + values)
        )
        return [
            ChannelRows(name, "q_proj", row_indices(heads, dim, stride=block), size),
            ChannelRows(name, "k_proj", row_indices(heads, dim, start=dim, stride=block), size),
            ChannelRows(name, "v_proj", v, size, axis="value"),
            ChannelRows(name, "gate", z, size, axis="value"),
            *contiguous_q_k_v(geometry),
            *norm_and_output(geometry),
        ]

    def heads(self, config: Config, geometry: Geometry) -> list[ChannelRows]:
        # in_proj_ba, per key head: [ b of its value heads | a of its value heads ]
        heads, group = geometry.num_k_heads, geometry.group
        b, a = (
            row_indices(heads, group, start, stride=2 * group).reshape(-1, 1)
            for start in (0, group)
        )
        size = 2 * geometry.num_v_heads
        return head_claims(
            self.channels(config, geometry),
            [ChannelRows("in_proj_ba.weight", "gate", t, size, axis="value") for t in (b, a)],
            one_each(("A_log", "dt_bias"), geometry.num_v_heads),
        )

    def resized(self, config: Config, geometry: Geometry) -> Config:
        return resized_linear(config, geometry)

    def softmax_cache(self, config: Config, geometry: Geometry) -> SoftmaxCache:
        layers = other_layers(config, geometry)
        return attention_cache(config, layers, key_value_heads=2, head_dim=256)


FAMILY = Qwen3Next()
