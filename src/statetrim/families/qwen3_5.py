"""Qwen3.5 and Qwen4-Exp: q, k and v in one projection, contiguous; text or vision-language.

MiniCPM-V 4.6 and 4.7 and MiniCPM-OCR put other vision towers in front of a Qwen3.5 text model.
"""

from dataclasses import replace

from ..cut.geometry import Geometry
from ..cut.rows import ChannelRows, row_indices
from ._linear_fields import LinearFieldsFamily, contiguous_conv_rows, norm_and_output_rows
from .contract import (
    Config,
    KVCacheSize,
    attention_kv_cache_size,
    int_field,
    nested_config,
    nested_text_config,
    num_softmax_layers,
)


class Qwen35(LinearFieldsFamily):
    text_types = ("qwen3_5_text", "qwen3_5_moe_text", "qwen4_exp_text")
    minicpm_types = ("minicpmv4_6", "minicpmv4_7", "minicpm_ocr")
    model_types = (*text_types, "qwen3_5", "qwen3_5_moe", "qwen4_exp", *minicpm_types)
    mixer_prefixes = (
        "model.layers.{layer}.linear_attn",
        "model.language_model.layers.{layer}.linear_attn",
    )
    unchanged_tensors = ("in_proj_a.weight", "in_proj_b.weight", "A_log", "dt_bias")
    projections = ("in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "out_proj")

    def geometry(self, config: Config) -> Geometry:
        return super().geometry(self._text_config(config))

    def channel_rows(self, config: Config, geometry: Geometry) -> list[ChannelRows]:
        q_conv, k_conv, v_conv = contiguous_conv_rows(geometry)
        gate = row_indices(geometry.num_v_heads, geometry.head_v_dim)
        return [
            replace(q_conv, tensor="in_proj_qkv.weight", role="q_proj"),
            replace(k_conv, tensor="in_proj_qkv.weight", role="k_proj"),
            replace(v_conv, tensor="in_proj_qkv.weight", role="v_proj"),
            q_conv,
            k_conv,
            v_conv,
            ChannelRows("in_proj_z.weight", "gate", gate, gate.numel(), axis="value"),
            *norm_and_output_rows(geometry),
        ]

    def resized(self, config: Config, geometry: Geometry) -> Config:
        if config["model_type"] in self.text_types:
            return super().resized(config, geometry)
        return config | {"text_config": super().resized(self._text_config(config), geometry)}

    def auto_class(self, config: Config) -> str:
        is_minicpm = config["model_type"] in self.minicpm_types
        return "AutoModelForMultimodalLM" if is_minicpm else super().auto_class(config)

    def kv_cache_size(self, config: Config, geometry: Geometry) -> KVCacheSize:
        text = self._text_config(config)
        model_types = {config["model_type"], text.get("model_type")}
        is_dense = bool(model_types & {"qwen3_5", "qwen3_5_text"})
        cache_size = attention_kv_cache_size(
            text,
            num_softmax_layers(text, geometry),
            default_kv_heads=4 if is_dense else 2,
            default_head_dim=256,
        )
        # Qwen4-Exp caches the keys of its indexer as well.
        indexer_width = int_field(text, "indexer_head_dim", default=0)
        return replace(cache_size, numel=cache_size.numel + indexer_width)

    def _text_config(self, config: Config) -> Config:
        """The config of the text model: the nested one of a multimodal model, else `config`."""
        if config["model_type"] in self.text_types:
            return config
        if config["model_type"] in self.minicpm_types:
            return nested_text_config(config, self.text_types, "text_config")
        return nested_config(config, "text_config")


FAMILY = Qwen35()
