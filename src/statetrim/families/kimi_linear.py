"""Kimi-Linear and GLM-5-Next: one width for queries, keys, values and gates, but a head count."""

from dataclasses import replace

from ..geometry import ChannelRows, Geometry, row_indices
from ._fla import separate_projections, value_projection
from ._heads import head_claims, one_each
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
from .recurrences import Recurrence, delta_rule

_SECTION = "linear_attn_config"


class KimiLinear(Family):
    text_types = ("kimi_linear", "glm5_next_text")
    model_types = (*text_types, "glm5_next")
    mixers = (
        "model.layers.{layer}.self_attn",
        "model.language_model.layers.{layer}.self_attn",
    )
    untouched = (
        "A_log",
        "b_proj.weight",
        "f_a_proj.weight",
        "g_a_proj.weight",
        "g_b_proj.weight",
        "o_norm.weight",
    )
    kernels = ("chunk_kimi_delta_attention", "recurrent_kimi_delta_attention")
    positional = dict.fromkeys(kernels, ("query", "key", "value"))
    projections = (
        "q_proj", "k_proj", "v_proj", "o_proj", "b_proj", "g_a_proj", "g_b_proj",
        "forget_gate.f_a_proj", "forget_gate.f_b_proj",
    )  # fmt: skip
    joined = {  # noqa: RUF012
        "conv1d.weight": ("q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"),
    }

    def geometry(self, config: Config) -> Geometry:
        config = self._text(config)
        nested = _nested(config)
        default = 32 if config["model_type"] == "kimi_linear" else 64
        fields = config | nested
        heads = count(fields, "num_heads", "linear_num_heads", default=default, most=MOST_HEADS)
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
        table = row_indices(geometry.num_v_heads, geometry.head_v_dim)
        return [
            *separate_projections(geometry),
            *value_projection(geometry, table, table.numel()),
            ChannelRows("f_b_proj.weight", "gate", table, table.numel()),
            ChannelRows("dt_bias", "gate", table, table.numel()),
            ChannelRows("o_proj.weight", "o_proj", table, table.numel(), axis="value", dim=1),
        ]

    def heads(self, config: Config, geometry: Geometry) -> list[ChannelRows]:
        heads, table = geometry.num_v_heads, row_indices(geometry.num_v_heads, geometry.head_v_dim)
        (decay,) = one_each(("A_log",), heads)
        kimi = config["model_type"] == "kimi_linear"  # whose A_log is [1, 1, heads, 1]
        return head_claims(
            self.channels(config, geometry),
            one_each(("b_proj.weight",), heads),
            [
                replace(decay, dim=2 if kimi else 0, optional=False),
                ChannelRows("g_b_proj.weight", "gate", table, table.numel()),
            ],
        )

    def channel_refusal(self, config: Config) -> str | None:
        return ONE_WIDTH

    def resized(self, config: Config, geometry: Geometry) -> Config:
        if config["model_type"] not in self.text_types:
            return config | {"text_config": self.resized(self._text(config), geometry)}
        # The section that the hub's configs have overrides the flat fields on every load.
        heads = geometry.num_v_heads
        edited = config | {"linear_num_heads": heads}
        if config.get(_SECTION) is None:
            return edited
        return edited | {_SECTION: _nested(config) | {"num_heads": heads}}

    def auto_class(self, config: Config) -> str:
        seeing = config["model_type"] == "glm5_next"  # transformers has no text-only class for it
        return "AutoModelForImageTextToText" if seeing else super().auto_class(config)

    def recurrence(self, kernel: str) -> Recurrence:
        return delta_rule

    def _text(self, config: Config) -> Config:
        if config["model_type"] in self.text_types:
            return config
        return {"model_type": "glm5_next_text"} | section(config, "text_config")


def _nested(config: Config) -> Config:
    return section(config, _SECTION) if config.get(_SECTION) is not None else {}


def _layers(config: Config, nested: Config) -> tuple[int, ...]:
    kinds = layer_kinds(config, "layer_types")
    if kinds is not None:
        return layers_of_kind(kinds, "linear_attention")
    listed = layer_numbers(nested, "kda_layers")
    if listed and config["model_type"] == "kimi_linear":
        return tuple(layer - 1 for layer in listed if layer)  # counted from 1 on the hub
    if config["model_type"] == "kimi_linear":
        total = count(config, "num_hidden_layers", default=27, most=MOST_LAYERS)
        return tuple(i for i in range(total) if not i or i % 4)
    total = count(config, "num_hidden_layers", default=45, most=MOST_LAYERS)
    return tuple(i for i in range(total) if i % 4 != 3)


FAMILY = KimiLinear()
