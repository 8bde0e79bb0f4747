"""Kimi-Linear: its state can be described, but a stock config cannot hold a cut one."""

from ..errors import StatetrimError
from ..geometry import ChannelRows, Geometry
from ._refused import ONE_WIDTH
from .contract import (
    MOST_CHANNELS,
    MOST_HEADS,
    MOST_LAYERS,
    Config,
    Family,
    checked,
    count,
    layer_kinds,
    layer_numbers,
    layers_of_kind,
    section,
)


class KimiLinear(Family):
    model_types = ("kimi_linear",)
    mixers = ("model.layers.{layer}.self_attn",)
    untouched = ()

    def geometry(self, config: Config) -> Geometry:
        # The hub's nested section overrides the flat fields on every load.
        has_section = config.get("linear_attn_config") is not None
        nested = section(config, "linear_attn_config") if has_section else {}
        fields = config | nested
        heads = count(fields, "num_heads", "linear_num_heads", default=32, most=MOST_HEADS)
        dim = count(
            nested,
            "head_dim",
            default=count(config, "linear_head_dim", default=128),
            most=MOST_CHANNELS,
        )
        return checked(
            Geometry(
                layers=_layers(config, nested),
                num_k_heads=heads,
                num_v_heads=heads,
                head_k_dim=dim,
                head_v_dim=dim,
                conv_key_heads=2 * heads,
                conv_value_heads=heads,
                conv_width=count(
                    fields, "short_conv_kernel_size", "linear_conv_kernel_dim", default=4, most=1024
                ),
            )
        )

    def channels(self, config: Config, geometry: Geometry) -> list[ChannelRows]:
        raise StatetrimError(f"kimi_linear cannot be pruned: {ONE_WIDTH}")

    def resized(self, config: Config, geometry: Geometry) -> Config:
        raise StatetrimError(f"kimi_linear cannot be pruned: {ONE_WIDTH}")

    def refusal(self, config: Config) -> str | None:
        return ONE_WIDTH


def _layers(config: Config, nested: Config) -> tuple[int, ...]:
    kinds = layer_kinds(config, "layer_types")
    if kinds is not None:
        return layers_of_kind(kinds, "linear_attention")
    listed = layer_numbers(nested, "kda_layers")
    if listed:
        return tuple(layer - 1 for layer in listed if layer)  # counted from 1 on the hub
    total = count(config, "num_hidden_layers", default=27, most=MOST_LAYERS)
    return tuple(i for i in range(total) if (i + 1) % 4)


FAMILY = KimiLinear()
