"""Kimi-Linear: its state can be described, but a stock config cannot hold a cut one."""

from ..errors import StatetrimError
from ..family import (
    MOST_CHANNELS,
    MOST_HEADS,
    MOST_LAYERS,
    Config,
    Family,
    checked,
    count,
    layer_kinds,
    layers_of_kind,
)
from ..geometry import ChannelRows, Geometry
from ._refused import ONE_WIDTH


class KimiLinear(Family):
    model_types = ("kimi_linear",)
    mixers = ("model.layers.{layer}.self_attn",)
    untouched = ()

    def geometry(self, config: Config) -> Geometry:
        # The hub's nested section overrides the flat fields on every load.
        nested = config.get("linear_attn_config") or {}
        fields = config | (nested if isinstance(nested, dict) else {})
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
    listed = nested.get("kda_layers")
    if isinstance(listed, list) and listed and all(type(i) is int and i > 0 for i in listed):
        return tuple(sorted(i - 1 for i in listed))  # counted from 1 on the hub
    total = count(config, "num_hidden_layers", default=27, most=MOST_LAYERS)
    return tuple(i for i in range(total) if (i + 1) % 4)


FAMILY = KimiLinear()
