"""Sizes of pages in vLLM, by its own functions."""

from dataclasses import dataclass
from typing import Any

import torch
from vllm.model_executor.layers.mamba.mamba_utils import (
    MambaStateDtypeCalculator,
    MambaStateShapeCalculator,
)
from vllm.utils.math_utils import cdiv
from vllm.v1.kv_cache_interface import MambaSpec

from .pages import Heads, layer_widths, number_of_parts

try:
    from vllm.v1.core import kv_cache_planning as planning
except ImportError:  # before vLLM 0.33
    from vllm.v1.core import kv_cache_utils as planning

Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Pages:
    """How the state of a model with widths by layer is divided into pages of one size."""

    layers: tuple[Heads, ...]  # of one rank, once for each shape of a layer
    conv_kernel_size: int
    num_spec: int
    dtypes: tuple[torch.dtype, ...]

    @classmethod
    def of(cls, vllm_config: Any) -> "Pages | None":
        """None for a model without widths by layer."""
        model, cache = vllm_config.model_config, vllm_config.cache_config
        config, ranks = model.hf_text_config, vllm_config.parallel_config.tensor_parallel_size
        widths = layer_widths(model)
        if widths is None:
            return None
        speculative = vllm_config.speculative_config
        return cls(
            tuple(
                Heads(
                    config.linear_num_key_heads // ranks,
                    config.linear_num_value_heads // ranks,
                    *shape,
                )
                for shape in sorted(set(widths.values()))
            ),
            config.linear_conv_kernel_dim,
            speculative.num_speculative_tokens if speculative else 0,
            MambaStateDtypeCalculator.gated_delta_net_state_dtype(
                model.dtype, cache.mamba_cache_dtype, cache.mamba_ssm_cache_dtype
            ),
        )

    def parts(self, layer: Heads) -> int:
        return number_of_parts(layer, self.layers, self.size)

    @property
    def shapes(self) -> Shapes:
        """Of the convolution and the recurrent state that decide the page size: those of the
        narrowest layer, or of a part that is larger because its heads cannot be divided further."""
        parts = (layer.part(self.parts(layer)) for layer in self.layers)
        return self.shapes_of(max((part for part in parts if part), key=self.size))

    def size(self, heads: Heads) -> int:
        """Bytes of a page for these heads."""
        return MambaSpec(
            shapes=self.shapes_of(heads), dtypes=self.dtypes, block_size=-1
        ).page_size_bytes

    def shapes_of(self, heads: Heads) -> Shapes:
        return MambaStateShapeCalculator.gated_delta_net_state_shape(
            1,
            heads.num_k_heads,
            heads.num_v_heads,
            heads.head_k_dim,
            heads.head_v_dim,
            self.conv_kernel_size,
            self.num_spec,
        )


def pages_of_a_sequence(vllm_config: Any, specs: dict[str, Any]) -> int:
    """Pages that vLLM reserves for a sequence of the greatest length, padding included.

    By the grouping of its default layout; the layout itself is not known yet when vLLM asks for
    specs."""
    one_size = planning.unify_kv_cache_spec_page_size(specs)
    groups = planning._get_kv_cache_groups_uniform_page_size(one_size)
    blocks = sum(
        cdiv(
            group.kv_cache_spec.max_memory_usage_bytes(vllm_config),
            group.kv_cache_spec.page_size_bytes,
        )
        for group in groups
    )
    return blocks * max(len(group.layer_names) for group in groups)
