"""DeltaNet: fla's `delta_net` checkpoints, unchanged, in plain PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.configuration_utils import PreTrainedConfig

from .causal_lm import PortableForCausalLM, PortableModel
from .deferred import DeferredState
from .delta_rule import chunk_delta_rule, fused_recurrent_delta_rule
from .mixer import HeadSizes, Mixer, State, zero_padding
from .norm import GatedRMSNorm, RMSNorm


class DeltaNetConfig(PreTrainedConfig):
    """The fields and defaults of fla's config; `fuse_*` fields are kept but have no effect here."""

    model_type = "delta_net"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012

    def __init__(
        self,
        attn_mode: str = "chunk",
        hidden_size: int = 2048,
        expand_k: float = 1.0,
        expand_v: float = 1.0,
        use_gate: bool = False,
        use_short_conv: bool = True,
        allow_neg_eigval: bool = False,
        conv_size: int = 4,
        use_beta: bool = True,
        use_output_norm: bool = True,
        num_heads: int = 16,
        qk_norm: str = "l2",
        qk_activation: str = "silu",
        max_position_embeddings: int = 2048,
        hidden_ratio: int | None = 4,
        intermediate_size: int | None = None,
        hidden_act: str = "swish",
        num_hidden_layers: int = 24,
        norm_eps: float = 1e-6,
        attn: dict[str, Any] | list[dict[str, Any]] | None = None,
        use_cache: bool = True,
        pad_token_id: int | None = None,
        bos_token_id: int | None = 1,
        eos_token_id: int | None = 2,
        tie_word_embeddings: bool = False,
        initializer_range: float = 0.02,
        fuse_norm: bool = True,
        fuse_swiglu: bool = True,
        fuse_cross_entropy: bool = True,
        fuse_linear_cross_entropy: bool = False,
        use_l2warp: bool = False,
        vocab_size: int = 32000,
        attnres_block_size: int | None = None,
        **kwargs: Any,
    ) -> None:
        self.attn_mode = attn_mode
        self.hidden_size = hidden_size
        self.expand_k = expand_k
        self.expand_v = expand_v
        self.use_gate = use_gate
        self.use_short_conv = use_short_conv
        self.allow_neg_eigval = allow_neg_eigval
        self.conv_size = conv_size
        self.use_beta = use_beta
        self.use_output_norm = use_output_norm
        self.num_heads = num_heads
        self.qk_norm = qk_norm
        self.qk_activation = qk_activation
        self.max_position_embeddings = max_position_embeddings
        self.hidden_ratio = hidden_ratio
        self.intermediate_size = intermediate_size
        self.hidden_act = hidden_act
        self.num_hidden_layers = num_hidden_layers
        self.norm_eps = norm_eps
        self.attn = attn
        self.use_cache = use_cache
        self.initializer_range = initializer_range
        self.fuse_norm = fuse_norm
        self.fuse_swiglu = fuse_swiglu
        self.fuse_cross_entropy = fuse_cross_entropy
        self.fuse_linear_cross_entropy = fuse_linear_cross_entropy
        self.use_l2warp = use_l2warp
        self.vocab_size = vocab_size
        self.attnres_block_size = attnres_block_size
        super().__init__(
            pad_token_id=pad_token_id,
            bos_token_id=bos_token_id,
            eos_token_id=eos_token_id,
            tie_word_embeddings=tie_word_embeddings,
            **kwargs,
        )


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": lambda x: x,  # already applied with the convolution
    "identity": lambda x: x,
    "relu": F.relu,
    "elu": lambda x: F.elu(x) + 1,
}


class DeltaNet(Mixer):
    """The mixer of DeltaNet: the delta rule without decay."""

    def __init__(self, config: DeltaNetConfig, layer_idx: int) -> None:
        if config.qk_norm not in ("l2", "sum"):
            raise ValueError(f"qk_norm={config.qk_norm!r} is not supported, only 'l2' and 'sum'.")
        if config.qk_activation not in ACTIVATIONS:
            raise ValueError(
                f"qk_activation={config.qk_activation!r} is not supported, "
                f"only {', '.join(ACTIVATIONS)}."
            )
        heads = HeadSizes(
            config.num_heads,
            config.num_heads,
            _width_per_head("expand_k", config.expand_k, config),
            _width_per_head("expand_v", config.expand_v, config),
        )
        conv_size = config.conv_size if config.use_short_conv else None
        conv_bias = getattr(config, "conv_bias", False)
        super().__init__(
            config.hidden_size, heads, layer_idx, conv_size, conv_bias, config.qk_activation
        )
        self.activation = ACTIVATIONS[config.qk_activation]
        self.qk_norm = config.qk_norm
        self.beta_scale = 2.0 if config.allow_neg_eigval else 1.0
        self.use_beta, self.use_gate = config.use_beta, config.use_gate
        if config.use_beta:
            self.b_proj = nn.Linear(config.hidden_size, config.num_heads, bias=False)
        self.o_norm: RMSNorm
        if config.use_gate:
            self.g_proj = nn.Linear(config.hidden_size, heads.value_dim, bias=False)
            self.o_norm = GatedRMSNorm(heads.head_v_dim, config.norm_eps, "swish")
        else:
            self.o_norm = RMSNorm(heads.head_v_dim, config.norm_eps)

    def run_recurrence(
        self,
        x: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        valid: Tensor | None,
        past_state: State | None,
    ) -> tuple[Tensor, State]:
        q, k = self.activation(q), self.activation(k)
        if self.qk_norm == "sum":
            q, k = (F.normalize(x, p=1.0, dim=-1, eps=1e-6) for x in (q, k))
        beta = self.b_proj(x).sigmoid() if self.use_beta else torch.ones_like(q[..., 0])
        beta = zero_padding(beta * self.beta_scale, valid)
        use_l2_norm = self.qk_norm == "l2"
        state: State | None
        if isinstance(past_state, DeferredState):
            o, state = fused_recurrent_delta_rule(
                q, k, v, beta=beta, initial_state=past_state, output_final_state=True,
                use_qk_l2norm_in_kernel=use_l2_norm,
            )  # fmt: skip
        else:
            o, state = chunk_delta_rule(
                q, k, v, beta=beta, initial_state=past_state, output_final_state=True,
                use_qk_l2norm_in_kernel=use_l2_norm,
            )  # fmt: skip
        assert state is not None
        return o, state

    def normalize_output(self, x: Tensor, o: Tensor) -> Tensor:
        if not self.use_gate:
            return self.o_norm(o)  # type: ignore[no-any-return]
        return self.o_norm(o, self.g_proj(x).view_as(o))  # type: ignore[no-any-return]


def _width_per_head(field: str, expand: float, config: DeltaNetConfig) -> int:
    """`hidden_size * expand / num_heads` channels; raises ValueError if that is not whole, with the
    name `field`."""
    size = config.hidden_size * expand
    if not math.isclose(size, round(size)) or round(size) % config.num_heads:
        raise ValueError(
            f"{field}={expand} times hidden_size={config.hidden_size} must be a multiple of "
            f"num_heads={config.num_heads}."
        )
    return round(size) // config.num_heads


class DeltaNetModel(PortableModel):
    config_class = DeltaNetConfig
    mixer = staticmethod(DeltaNet)


class DeltaNetForCausalLM(PortableForCausalLM):
    config_class = DeltaNetConfig
    backbone = DeltaNetModel
