"""Linear-attention layers with their own widths, and the parts of wide ones."""

import copy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from vllm.config import get_layers_from_vllm_config
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn import QwenGatedDeltaNetAttention
from vllm.model_executor.models.utils import extract_layer_index
from vllm.platforms import current_platform

from .pages import FIELD, Heads, layer_widths
from .specs import Pages, pages_of_a_sequence


class _Cached(QwenGatedDeltaNetAttention):
    """A layer or a part with a cache."""

    one_spec: bool | None = None

    def own_spec(self, vllm_config: Any) -> Any:
        return super().get_kv_cache_spec(vllm_config)

    def get_kv_cache_spec(self, vllm_config: Any) -> Any:
        """Of its own shapes, or of the same shapes for all, whichever takes less memory: vLLM puts
        layers of one spec into groups of one size, and pads the last of them."""
        pages = Pages.of(vllm_config)
        spec = self.own_spec(vllm_config)
        if pages is None:
            return spec
        if self.one_spec is None:
            _choose_specs(vllm_config, pages)
        return replace(spec, shapes=pages.shapes) if self.one_spec else spec


def _choose_specs(vllm_config: Any, pages: Pages) -> None:
    """Set `one_spec` of all layers."""
    layers = get_layers_from_vllm_config(vllm_config, AttentionLayerBase)
    own, same = {}, {}
    for name, layer in layers.items():
        if not isinstance(layer, _Cached):
            own[name] = same[name] = layer.get_kv_cache_spec(vllm_config)
        elif not getattr(layer, "parts", ()):
            own[name] = layer.own_spec(vllm_config)
            same[name] = replace(own[name], shapes=pages.shapes)
    one_spec = pages_of_a_sequence(vllm_config, same) <= pages_of_a_sequence(vllm_config, own)
    for layer in layers.values():
        if isinstance(layer, _Cached):
            layer.one_spec = one_spec


class UnevenGatedDeltaNetAttention(_Cached):
    """A layer with the widths that the config lists for it; a wide one runs its parts."""

    def __init__(
        self, config: Any, vllm_config: Any, prefix: str = "", *args: Any, **kwargs: Any
    ) -> None:
        own = layer_config(config, vllm_config.model_config, prefix)
        super().__init__(own, vllm_config, prefix, *args, **kwargs)
        self.parts: tuple[Part, ...] = ()
        if own is config:
            return
        if self.head_k_dim != 128 and self.gdn_prefill_backend != "triton":
            # vLLM chooses one kernel for all layers, by the config's width; others need 128.
            self.chunk_gated_delta_rule._forward_method = self.chunk_gated_delta_rule.forward_native
        pages = Pages.of(vllm_config)
        assert pages is not None
        mine = Heads(
            self.num_k_heads // self.tp_size,
            self.num_v_heads // self.tp_size,
            self.head_k_dim,
            self.head_v_dim,
        )
        count = pages.parts(mine)
        if count == 1:
            return
        self.parts = tuple(Part(self, mine, index, count) for index in range(count))
        # These forwards of other platforms ask for the cache of the whole layer.
        self._forward_method = self.forward_cuda
        self.enable_fused_gdn_spec_decode = False
        names = vllm_config.compilation_config.static_forward_context
        names.update((part.prefix, part) for part in self.parts)

    def get_kv_cache_spec(self, vllm_config: Any) -> Any:
        return None if self.parts else super().get_kv_cache_spec(vllm_config)

    def _forward_core(
        self,
        mixed_qkv: torch.Tensor,  # tokens x channels
        b: torch.Tensor,  # tokens x value heads
        a: torch.Tensor,
        core_attn_out: torch.Tensor,  # tokens x value heads x value width
    ) -> None:
        if not self.parts:
            return super()._forward_core(mixed_qkv, b, a, core_attn_out)
        for part in self.parts:
            part.run(mixed_qkv, b, a, core_attn_out)


class Part(_Cached):
    """Some heads of a wide layer, with their own convolution and recurrent cache.

    It has no parameters: it reads its share of the layer's at each call, so that weights may be
    loaded, converted or replaced as in any layer."""

    def __init__(self, layer: QwenGatedDeltaNetAttention, whole: Heads, index: int, count: int):
        torch.nn.Module.__init__(self)
        own = vars(self)
        own.update((name, value) for name, value in vars(layer).items() if name not in own)
        # Not by assignment, which would make them submodules.
        own["layer"], own["chunk_gated_delta_rule"] = layer, layer.chunk_gated_delta_rule
        part = whole.part(count)
        assert part is not None
        self.prefix = f"{layer.prefix}.part{index}"
        self.num_k_heads = part.num_k_heads * self.tp_size
        self.num_v_heads = part.num_v_heads * self.tp_size
        self.key_dim = self.num_k_heads * self.head_k_dim
        self.value_dim = self.num_v_heads * self.head_v_dim
        self.heads = slice(index * part.num_v_heads, (index + 1) * part.num_v_heads)
        first_key = self.heads.start * whole.num_k_heads // whole.num_v_heads
        key_channels = part.num_k_heads * self.head_k_dim
        value_channels = part.num_v_heads * self.head_v_dim
        query = first_key * self.head_k_dim
        key = query + whole.num_k_heads * self.head_k_dim
        value = 2 * whole.num_k_heads * self.head_k_dim + self.heads.start * self.head_v_dim
        self.channels = (
            slice(query, query + key_channels),
            slice(key, key + key_channels),
            slice(value, value + value_channels),
        )

    def channels_of(self, rows: torch.Tensor) -> torch.Tensor:
        """Queries, keys and values of this part, from the layer's."""
        return torch.cat([rows[channels] for channels in self.channels])

    @property
    def conv1d(self) -> Any:
        """Whole heads are whole blocks of 32 rows, in which vLLM packs the weight for CPUs."""
        whole = vars(self)["layer"].conv1d
        unpacked = getattr(whole, "_cpu_unpacked_conv_weight", None)
        return SimpleNamespace(
            weight=self.channels_of(whole.weight),
            bias=whole.bias,
            _cpu_unpacked_conv_weight=None if unpacked is None else self.channels_of(unpacked),
        )

    @property
    def A_log(self) -> torch.Tensor:
        return vars(self)["layer"].A_log[self.heads]

    @property
    def dt_bias(self) -> torch.Tensor:
        return vars(self)["layer"].dt_bias[self.heads]

    def run(
        self, mixed_qkv: torch.Tensor, b: torch.Tensor, a: torch.Tensor, layer_out: torch.Tensor
    ) -> None:
        """Compute this part's heads of `layer_out` from the layer's inputs."""
        inputs = (
            self.channels_of(mixed_qkv.T).T.contiguous(),
            b[:, self.heads].contiguous(),
            a[:, self.heads].contiguous(),
        )
        out = torch.zeros_like(layer_out[:, self.heads], memory_format=torch.contiguous_format)
        if current_platform.is_cpu():
            from vllm.model_executor.layers.mamba.ops.cpu.gdn_attention import (
                cpu_gdn_attention_core,
            )

            cpu_gdn_attention_core(*inputs, out, self.prefix)
        else:
            self._forward_core(*inputs, out)
        layer_out[:, self.heads] = out


def layer_config(config: Any, model_config: Any, prefix: str) -> Any:
    """`config` with the widths of the layer called `prefix`, if the model lists widths by layer;
    raises ValueError if it does not list this layer."""
    widths = layer_widths(model_config)
    if widths is None:
        return config
    layer = str(extract_layer_index(prefix))
    if layer not in widths:
        raise ValueError(f"{FIELD} does not list layer {layer}, which has linear attention")
    result = copy.copy(config)
    result.linear_key_head_dim, result.linear_value_head_dim = widths[layer]
    return result
