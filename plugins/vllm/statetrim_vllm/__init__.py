"""vLLM plugin: Qwen3-Next and Qwen3.5 models whose linear-attention layers differ in width.

A statetrim checkpoint with widths by layer lists key and value width of every linear layer in the
config field `statetrim_widths`; all other fields hold the largest widths. This plugin builds each
layer with its own widths. vLLM's cache has one page size for all layers, so a layer that is wider
than the narrowest is divided by heads into parts that each fit into one page (`pages`), and each
part is a layer of its own for the cache (`layers`). Models without the field are built as before.
"""

_LAYER = "QwenGatedDeltaNetAttention"
_ARCHITECTURES = (
    "Qwen3NextForCausalLM",
    "Qwen3_5ForCausalLM",
    "Qwen3_5MoeForCausalLM",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration",
)


def register() -> None:
    """Entry point `vllm.general_plugins`: vLLM calls it in each process before building a model."""
    from vllm.model_executor.custom_op import PluggableLayer, op_registry_oot
    from vllm.model_executor.models.registry import ModelRegistry

    from .layers import UnevenGatedDeltaNetAttention

    if _LAYER in op_registry_oot:  # vLLM may call this twice in one process
        return
    PluggableLayer.register_oot(UnevenGatedDeltaNetAttention, name=_LAYER)
    for architecture in _ARCHITECTURES:
        ModelRegistry.register_model(architecture, f"{__name__}.models:{architecture}")
