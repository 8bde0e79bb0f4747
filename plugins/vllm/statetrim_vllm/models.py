"""vLLM's models, which give the page size of widths by layer."""

from typing import Any

from vllm.model_executor.models import qwen3_5, qwen3_next

from .specs import Pages


class _Paged:
    """The state shape from which vLLM computes the size of a page, and with it the block size."""

    @classmethod
    def get_mamba_state_shape_from_config(cls, vllm_config: Any) -> Any:
        pages, stock = Pages.of(vllm_config), super()
        return pages.shapes if pages else stock.get_mamba_state_shape_from_config(vllm_config)


class Qwen3NextForCausalLM(_Paged, qwen3_next.Qwen3NextForCausalLM): ...


class Qwen3_5ForCausalLM(_Paged, qwen3_5.Qwen3_5ForCausalLM): ...


class Qwen3_5MoeForCausalLM(_Paged, qwen3_5.Qwen3_5MoeForCausalLM): ...


class Qwen3_5ForConditionalGeneration(_Paged, qwen3_5.Qwen3_5ForConditionalGeneration): ...


class Qwen3_5MoeForConditionalGeneration(_Paged, qwen3_5.Qwen3_5MoeForConditionalGeneration): ...
