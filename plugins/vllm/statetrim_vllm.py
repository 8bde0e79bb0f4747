"""vLLM plugin: Qwen3-Next and Qwen3.5 models whose linear-attention layers differ in width.

A statetrim checkpoint with widths by layer lists key and value width of every linear layer in the
config field `statetrim_widths`; all other fields hold the largest widths. vLLM builds linear layers
from the model's config and lets a plugin replace their class: this one gives each layer its own
config. Models without the field are built as before.
"""

import copy
from dataclasses import replace
from typing import Any

FIELD = "statetrim_widths"
_REPLACED = "QwenGatedDeltaNetAttention"


def register() -> None:
    """Entry point `vllm.general_plugins`: vLLM calls it in each process before building a model."""
    from vllm import envs
    from vllm.model_executor.custom_op import PluggableLayer, op_registry_oot
    from vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn import (
        QwenGatedDeltaNetAttention,
    )

    class UnevenGatedDeltaNetAttention(QwenGatedDeltaNetAttention):
        def __init__(
            self, config: Any, vllm_config: Any, prefix: str = "", *args: Any, **kwargs: Any
        ) -> None:
            own = layer_config(config, vllm_config.model_config.hf_config, prefix)
            super().__init__(own, vllm_config, prefix, *args, **kwargs)
            self.narrowed = own is not config and widths_of(own) != widths_of(config)

        def get_kv_cache_spec(self, vllm_config: Any) -> Any:
            """Without padding for narrow layers if the cache layout is block-outermost.

            vLLM pads every state to one page size, but packs pages of several sizes in that
            layout. The user must set it: vLLM chooses its own only after it has the specs."""
            spec = super().get_kv_cache_spec(vllm_config)
            packed = (envs.VLLM_KV_CACHE_LAYOUT or "").startswith("BL")
            return replace(spec, page_size_padded=None) if self.narrowed and packed else spec

    if _REPLACED not in op_registry_oot:  # vLLM may call this twice in one process
        PluggableLayer.register_oot(UnevenGatedDeltaNetAttention, name=_REPLACED)


def widths_of(config: Any) -> tuple[int, int]:
    """Key and value width of a head."""
    return config.linear_key_head_dim, config.linear_value_head_dim


def layer_config(config: Any, model_config: Any, prefix: str) -> Any:
    """`config` with the widths of the layer called `prefix`, if `model_config` or `config` lists
    widths by layer; raises ValueError if they do not list this layer."""
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
