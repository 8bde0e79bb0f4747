"""vLLM plugin: Qwen3-Next and Qwen3.5 models whose linear-attention layers differ in width.

An uneven checkpoint of statetrim lists keys and values per head of every layer in the config field
`statetrim_widths`; all other fields say the widest. vLLM builds each linear-attention layer from
the model's config, and lets a plugin put another class in its place: this one gives each layer a
config of its own. A model without the field is built as ever.
"""

import copy
from dataclasses import replace
from typing import Any

FIELD = "statetrim_widths"
_REPLACED = "QwenGatedDeltaNetAttention"


def register() -> None:
    """Called by vLLM in each of its processes, before a model is made (`vllm.general_plugins`)."""
    from vllm import envs
    from vllm.model_executor.custom_op import PluggableLayer, op_registry_oot
    from vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn import (
        QwenGatedDeltaNetAttention,
    )

    class UnevenGatedDeltaNetAttention(QwenGatedDeltaNetAttention):
        def __init__(
            self, config: Any, vllm_config: Any, prefix: str = "", *args: Any, **kwargs: Any
        ) -> None:
            own_layer_config = layer_config(config, vllm_config.model_config.hf_config, prefix)
            super().__init__(own_layer_config, vllm_config, prefix, *args, **kwargs)
            self.narrowed = own_layer_config is not config and widths_of(
                own_layer_config
            ) != widths_of(config)

        def get_kv_cache_spec(self, vllm_config: Any) -> Any:
            """vLLM pads every state to one page size; where blocks are outermost it can pack pages
            of several sizes, so that a narrow layer takes less. That layout must be asked for:
            vLLM settles it only after it has seen these."""
            spec = super().get_kv_cache_spec(vllm_config)
            packed = (envs.VLLM_KV_CACHE_LAYOUT or "").startswith("BL")
            return replace(spec, page_size_padded=None) if self.narrowed and packed else spec

    if _REPLACED not in op_registry_oot:  # vLLM may ask twice in one process
        PluggableLayer.register_oot(UnevenGatedDeltaNetAttention, name=_REPLACED)


def widths_of(config: Any) -> tuple[int, int]:
    """Keys and values per head."""
    return config.linear_key_head_dim, config.linear_value_head_dim


def layer_config(config: Any, model_config: Any, prefix: str) -> Any:
    """The config of the layer called `prefix`: `config`, with this layer's widths where `whole`,
    the config of the entire model, lists them."""
    widths = getattr(model_config, FIELD, None) or getattr(config, FIELD, None)
    if not widths:
        return config
    from vllm.model_executor.models.utils import extract_layer_index

    layer = str(extract_layer_index(prefix))
    if layer not in widths:
        raise ValueError(f"{FIELD} does not list layer {layer}, which has linear attention")
    result = copy.copy(config)
    result.linear_key_head_dim, result.linear_value_head_dim = widths[layer]
    return result
