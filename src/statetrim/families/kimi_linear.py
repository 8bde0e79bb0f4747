"""Kimi-Linear and GLM-5-Next: one config field sets all widths, so only heads can be removed."""

from dataclasses import replace

from ..cut.geometry import Geometry
from ..cut.rows import ChannelRows, head_rows_from_channels, per_head_rows, row_indices
from ._fla import CONCATENATED_CONVOLUTIONS, output_rows, projection_rows, query_key_rows
from ._refused import ONE_WIDTH_REFUSAL
from .contract import (
    Config,
    Family,
    KVCacheSize,
    int_field,
    layer_indices_field,
    layer_types_field,
    layers_of_type,
    nested_config,
    num_layers,
    num_softmax_layers,
)
from .recurrences import Recurrence, delta_rule

_SECTION = "linear_attn_config"


class KimiLinear(Family):
    text_types = ("kimi_linear", "glm5_next_text")
    model_types = (*text_types, "glm5_next")
    mixer_prefixes = (
        "model.layers.{layer}.self_attn",
        "model.language_model.layers.{layer}.self_attn",
    )
    unchanged_tensors = (
        "A_log", "b_proj.weight", "f_a_proj.weight", "g_a_proj.weight", "g_b_proj.weight",
        "o_norm.weight",
    )  # fmt: skip
    kernels = ("chunk_kimi_delta_attention", "recurrent_kimi_delta_attention")
    positional_arguments = dict.fromkeys(kernels, ("query", "key", "value"))
    projections = (
        "q_proj", "k_proj", "v_proj", "o_proj", "b_proj", "g_a_proj", "g_b_proj",
        "forget_gate.f_a_proj", "forget_gate.f_b_proj",
    )  # fmt: skip
    concatenated_parameters = CONCATENATED_CONVOLUTIONS

    def geometry(self, config: Config) -> Geometry:
        config = self._text_config(config)
        nested = _linear_attn_section(config)
        default = 32 if config["model_type"] == "kimi_linear" else 64
        fields = config | nested
        head_names = ("num_heads", "linear_num_heads")
        heads = int_field(fields, *head_names, default=default)
        default_dim = int_field(config, "linear_head_dim", default=128)
        dim = int_field(nested, "head_dim", default=default_dim)
        conv_names = ("short_conv_kernel_size", "linear_conv_kernel_dim")
        return Geometry(
            layers=_linear_layers(config, nested),
            num_k_heads=heads,
            num_v_heads=heads,
            head_k_dim=dim,
            head_v_dim=dim,
            conv_key_heads=2 * heads,
            conv_value_heads=heads,
            conv_width=int_field(fields, *conv_names, default=4),
        )

    def channel_rows(self, config: Config, geometry: Geometry) -> list[ChannelRows]:
        """Rows of queries, keys, values, decay gates and o_proj's columns; not of the output gate
        and norm. Channels cannot be pruned here: `head_rows` and calibration use these."""
        table = row_indices(geometry.num_v_heads, geometry.head_v_dim)
        return [
            *query_key_rows(geometry),
            *projection_rows(geometry, "v", table, table.numel()),
            ChannelRows("f_b_proj.weight", "gate", table, table.numel()),
            ChannelRows("dt_bias", "gate", table, table.numel()),
            output_rows(geometry),
        ]

    def head_rows(self, config: Config, geometry: Geometry) -> list[ChannelRows]:
        heads, table = geometry.num_v_heads, row_indices(geometry.num_v_heads, geometry.head_v_dim)
        (a_log,) = per_head_rows(("A_log",), heads)
        is_kimi = config["model_type"] == "kimi_linear"  # whose A_log is [1, 1, heads, 1]
        return head_rows_from_channels(
            self.channel_rows(config, geometry),
            per_head_rows(("b_proj.weight",), heads),
            [
                replace(a_log, dim=2 if is_kimi else 0, optional=False),
                ChannelRows("g_b_proj.weight", "gate", table, table.numel()),
            ],
        )

    def channel_refusal(self, config: Config) -> str | None:
        return ONE_WIDTH_REFUSAL

    def resized(self, config: Config, geometry: Geometry) -> Config:
        if config["model_type"] not in self.text_types:
            return config | {"text_config": self.resized(self._text_config(config), geometry)}
        # Hub configs have a nested section, which overrides the top-level field on every load.
        heads = geometry.num_v_heads
        edited = config | {"linear_num_heads": heads}
        if config.get(_SECTION) is None:
            return edited
        return edited | {_SECTION: _linear_attn_section(config) | {"num_heads": heads}}

    def auto_class(self, config: Config) -> str:
        # transformers has no text-only class for the vision-language type.
        has_vision = config["model_type"] == "glm5_next"
        return "AutoModelForImageTextToText" if has_vision else super().auto_class(config)

    def kv_cache_size(self, config: Config, geometry: Geometry) -> KVCacheSize | None:
        """The latent vectors that engines cache; transformers caches keys and values instead. None
        for GLM-5-Next, whose indexer has caches of its own."""
        if config["model_type"] != "kimi_linear":
            return None
        latent = int_field(config, "kv_lora_rank", default=512)
        rotary = int_field(config, "qk_rope_head_dim", default=64)
        layers = num_softmax_layers(config, geometry, default=27)
        return KVCacheSize(layers, latent + rotary, latent=True)

    def recurrence(self, kernel: str) -> Recurrence:
        return delta_rule

    def _text_config(self, config: Config) -> Config:
        """The config of the text model, which one of a vision-language model holds."""
        if config["model_type"] in self.text_types:
            return config
        return {"model_type": "glm5_next_text"} | nested_config(config, "text_config")


def _linear_attn_section(config: Config) -> Config:
    """The nested section for linear attention; empty if the config has none."""
    return nested_config(config, _SECTION) if config.get(_SECTION) is not None else {}


def _linear_layers(config: Config, nested: Config) -> tuple[int, ...]:
    """Indices of the linear layers: from `layer_types`, in Kimi-Linear also from `kda_layers`
    (counted from 1), or by the stock class's pattern."""
    layer_types = layer_types_field(config, "layer_types")
    if layer_types is not None:
        return layers_of_type(layer_types, "linear_attention")
    kda_layers = layer_indices_field(nested, "kda_layers")
    if config["model_type"] == "kimi_linear":
        if kda_layers:
            return tuple(layer - 1 for layer in kda_layers if layer)  # counted from 1 on the hub
        total = num_layers(config, 27)
        return tuple(i for i in range(total) if not i or i % 4)
    total = num_layers(config, 45)
    return tuple(i for i in range(total) if i % 4 != 3)


FAMILY = KimiLinear()
