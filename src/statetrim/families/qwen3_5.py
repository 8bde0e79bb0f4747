"""Qwen3.5 and Qwen4-Exp: q, k and v in one projection, contiguous; text or vision-language.

MiniCPM-V 4.6 and 4.7 and MiniCPM-OCR are other vision towers before a Qwen3.5 text model.
"""

from dataclasses import replace

from ..geometry import ChannelRows, Geometry, row_indices
from ._heads import head_claims, one_each
from ._linear_fields import (
    LinearFieldsFamily,
    contiguous_q_k_v,
    linear_geometry,
    norm_and_output,
    resized_linear,
)
from .contract import (
    MOST_CHANNELS,
    Config,
    SoftmaxCache,
    attention_cache,
    count,
    other_layers,
    section,
    text_section,
)


class Qwen35(LinearFieldsFamily):
    text_types = ("qwen3_5_text", "qwen3_5_moe_text", "qwen4_exp_text")
    minicpm_types = ("minicpmv4_6", "minicpmv4_7", "minicpm_ocr")
    model_types = (*text_types, "qwen3_5", "qwen3_5_moe", "qwen4_exp", *minicpm_types)
    mixers = (
        "model.layers.{layer}.linear_attn",
        "model.language_model.layers.{layer}.linear_attn",
    )
    untouched = (
        "in_proj_a.weight",
        "in_proj_b.weight",
        "A_log",
        "dt_bias",
    )
    projections = ("in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "out_proj")

    def geometry(self, config: Config) -> Geometry:
        return linear_geometry(self._text(config))

    def channels(self, config: Config, geometry: Geometry) -> list[ChannelRows]:
        q_conv, k_conv, v_conv = contiguous_q_k_v(geometry)
        gate = row_indices(geometry.num_v_heads, geometry.head_v_dim)
        return [
            replace(q_conv, tensor="in_proj_qkv.weight", role="q_proj"),
            replace(k_conv, tensor="in_proj_qkv.weight", role="k_proj"),
            replace(v_conv, tensor="in_proj_qkv.weight", role="v_proj"),
            q_conv,
            k_conv,
            v_conv,
            ChannelRows("in_proj_z.weight", "gate", gate, gate.numel(), axis="value"),
            *norm_and_output(geometry),
        ]

    def heads(self, config: Config, geometry: Geometry) -> list[ChannelRows]:
        gates = one_each(self.untouched, geometry.num_v_heads)
        return head_claims(self.channels(config, geometry), gates)

    def resized(self, config: Config, geometry: Geometry) -> Config:
        if config["model_type"] in self.text_types:
            return resized_linear(config, geometry)
        return config | {"text_config": resized_linear(self._text(config), geometry)}

    def auto_class(self, config: Config) -> str:
        minicpm = config["model_type"] in self.minicpm_types
        return "AutoModelForMultimodalLM" if minicpm else super().auto_class(config)

    def softmax_cache(self, config: Config, geometry: Geometry) -> SoftmaxCache:
        text = self._text(config)
        kinds = {config["model_type"], text.get("model_type")}
        dense = bool(kinds & {"qwen3_5", "qwen3_5_text"})
        found = attention_cache(
            text,
            other_layers(text, geometry),
            key_value_heads=4 if dense else 2,
            head_dim=256,
        )
        indexer = count(text, "indexer_head_dim", default=0, most=MOST_CHANNELS)  # Qwen4-Exp's
        return replace(found, numel=found.numel + indexer)

    def _text(self, config: Config) -> Config:
        if config["model_type"] in self.text_types:
            return config
        if config["model_type"] in self.minicpm_types:
            return text_section(config, self.text_types, "text_config")
        return section(config, "text_config")


FAMILY = Qwen35()
