"""OLMo-Hybrid: separate projections; three convolutions on disk, concatenated in the module."""

from ..cut.geometry import Geometry
from ..cut.rows import ChannelRows
from ._fla import CONCATENATED_CONVOLUTIONS, HEAD_GATES, PROJECTIONS, query_key_rows, value_rows
from ._linear_fields import LinearFieldsFamily
from .contract import (
    Config,
    KVCacheSize,
    attention_kv_cache_size,
    int_field,
    layer_types_field,
    num_layers,
    num_softmax_layers,
)


class OlmoHybrid(LinearFieldsFamily):
    model_types = ("olmo_hybrid",)
    mixer_prefixes = ("model.layers.{layer}.linear_attn",)
    unchanged_tensors = HEAD_GATES
    projections = PROJECTIONS
    concatenated_parameters = CONCATENATED_CONVOLUTIONS

    def geometry(self, config: Config) -> Geometry:
        hidden = int_field(config, "hidden_size", default=3840)
        attention_heads = int_field(config, "num_attention_heads", default=30)
        key_heads = int_field(config, "linear_num_key_heads", default=attention_heads)
        value_heads = int_field(config, "linear_num_value_heads", default=attention_heads)
        default_dim = max(1, int(0.75 * hidden / key_heads))
        head_k_dim = int_field(config, "linear_key_head_dim", default=default_dim)
        head_v_dim = int_field(config, "linear_value_head_dim", default=2 * head_k_dim)
        explicit = {
            "layer_types": _layer_types(config),
            "linear_num_key_heads": key_heads,
            "linear_num_value_heads": value_heads,
            "linear_key_head_dim": head_k_dim,
            "linear_value_head_dim": head_v_dim,
        }
        return super().geometry(config | explicit)

    def channel_rows(self, config: Config, geometry: Geometry) -> list[ChannelRows]:
        return query_key_rows(geometry) + value_rows(geometry)

    def kv_cache_size(self, config: Config, geometry: Geometry) -> KVCacheSize:
        layers = num_softmax_layers(config, geometry, default=32)
        return attention_kv_cache_size(config, layers, heads=30, default_hidden_size=3840)


def _layer_types(config: Config) -> list[str]:
    """The type of every layer; by default every fourth is a softmax layer, or the last of fewer
    than four."""
    layer_types = layer_types_field(config, "layer_types")
    if layer_types is None:
        total = num_layers(config, 32)
        layer_types = ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(total)]
        if "full_attention" not in layer_types:
            layer_types[-1] = "full_attention"
    return layer_types


FAMILY = OlmoHybrid()
