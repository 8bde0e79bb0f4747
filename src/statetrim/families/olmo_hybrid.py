"""OLMo-Hybrid: separate projections; on disk three convolutions, in the module one."""

from ..geometry import ChannelRows, Geometry
from ._fla import HEAD_GATES, PROJECTIONS, separate_projections, separate_values
from ._heads import head_claims, one_each
from ._linear_fields import LinearFieldsFamily, resized_linear
from .contract import (
    MOST_CHANNELS,
    MOST_HEADS,
    MOST_LAYERS,
    Config,
    SoftmaxCache,
    attention_cache,
    checked,
    count,
    layer_kinds,
    layers_of_kind,
    other_layers,
)


class OlmoHybrid(LinearFieldsFamily):
    model_types = ("olmo_hybrid",)
    mixers = ("model.layers.{layer}.linear_attn",)
    untouched = HEAD_GATES
    projections = PROJECTIONS
    joined = {  # noqa: RUF012
        "conv1d.weight": ("q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"),
    }

    def geometry(self, config: Config) -> Geometry:
        hidden = count(config, "hidden_size", default=3840)
        attention_heads = count(config, "num_attention_heads", default=30, most=MOST_HEADS)
        key_heads = count(config, "linear_num_key_heads", default=attention_heads, most=MOST_HEADS)
        value_heads = count(
            config, "linear_num_value_heads", default=attention_heads, most=MOST_HEADS
        )
        default_dim = max(1, int(0.75 * hidden / key_heads))
        head_k_dim = count(config, "linear_key_head_dim", default=default_dim, most=MOST_CHANNELS)
        head_v_dim = count(
            config, "linear_value_head_dim", default=2 * head_k_dim, most=MOST_CHANNELS
        )
        return checked(
            Geometry(
                layers=layers_of_kind(_kinds(config), "linear_attention"),
                num_k_heads=key_heads,
                num_v_heads=value_heads,
                head_k_dim=head_k_dim,
                head_v_dim=head_v_dim,
                conv_key_heads=2 * key_heads,
                conv_value_heads=value_heads,
                conv_width=count(config, "linear_conv_kernel_dim", default=4, most=1024),
            )
        )

    def channels(self, config: Config, geometry: Geometry) -> list[ChannelRows]:
        return separate_projections(geometry) + separate_values(geometry)

    def heads(self, config: Config, geometry: Geometry) -> list[ChannelRows]:
        gates = one_each(HEAD_GATES, geometry.num_v_heads)
        return head_claims(self.channels(config, geometry), gates)

    def resized(self, config: Config, geometry: Geometry) -> Config:
        # Both fields always: an absent value dim would follow the smaller key dim.
        return resized_linear(config, geometry)

    def softmax_cache(self, config: Config, geometry: Geometry) -> SoftmaxCache:
        layers = other_layers(config, geometry, default=32)
        return attention_cache(config, layers, heads=30, hidden=3840)


def _kinds(config: Config) -> list[str]:
    kinds = layer_kinds(config, "layer_types")
    if kinds is None:
        total = count(config, "num_hidden_layers", default=32, most=MOST_LAYERS)
        kinds = ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(total)]
        if "full_attention" not in kinds:
            kinds[-1] = "full_attention"
    return kinds


FAMILY = OlmoHybrid()
