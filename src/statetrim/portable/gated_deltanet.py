"""Gated DeltaNet: fla's `gated_deltanet` checkpoints, unchanged, in plain PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.configuration_utils import PreTrainedConfig

from .causal_lm import PortableForCausalLM, PortableModel, PortablePreTrainedModel
from .decay_gate import initialize_decay, log_decay
from .deferred import DeferredState
from .delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule
from .mixer import Mixer, State, grouped_head_sizes, zero_padding
from .norm import GatedRMSNorm, RMSNorm


class GatedDeltaNetConfig(PreTrainedConfig):
    """The fields and defaults of fla's config; `fuse_*` fields are kept but have no effect here."""

    model_type = "gated_deltanet"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012

    def __init__(
        self,
        attn_mode: str = "chunk",
        hidden_size: int = 2048,
        expand_v: float = 2.0,
        use_gate: bool = True,
        use_short_conv: bool = True,
        allow_neg_eigval: bool = False,
        conv_size: int = 4,
        head_dim: int = 256,
        num_heads: int = 6,
        num_v_heads: int | None = None,
        max_position_embeddings: int = 2048,
        hidden_ratio: int | None = 4,
        intermediate_size: int | None = None,
        hidden_act: str = "swish",
        num_hidden_layers: int = 21,
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
        output_gate_activation: str = "swish",
        **kwargs: Any,
    ) -> None:
        self.attn_mode = attn_mode
        self.hidden_size = hidden_size
        self.expand_v = expand_v
        self.use_gate = use_gate
        self.use_short_conv = use_short_conv
        self.allow_neg_eigval = allow_neg_eigval
        self.conv_size = conv_size
        self.head_dim = head_dim
        self.num_heads = num_heads
        self.num_v_heads = num_v_heads
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
        self.output_gate_activation = output_gate_activation
        super().__init__(
            pad_token_id=pad_token_id,
            bos_token_id=bos_token_id,
            eos_token_id=eos_token_id,
            tie_word_embeddings=tie_word_embeddings,
            **kwargs,
        )


class GatedDeltaNet(Mixer):
    """The mixer of Gated DeltaNet: the delta rule with one decay per head."""

    def __init__(self, config: GatedDeltaNetConfig, layer_idx: int) -> None:
        if config.output_gate_activation not in ("swish", "silu", "sigmoid"):
            raise ValueError(
                f"output_gate_activation={config.output_gate_activation!r} is not supported, "
                "only 'swish', 'silu' and 'sigmoid'."
            )
        heads = grouped_head_sizes(
            config.num_heads, config.num_v_heads, config.head_dim, config.expand_v
        )
        conv_size = config.conv_size if config.use_short_conv else None
        conv_bias = getattr(config, "conv_bias", False)
        super().__init__(config.hidden_size, heads, layer_idx, conv_size, conv_bias)
        self.beta_scale = 2.0 if config.allow_neg_eigval else 1.0
        self.use_gate = config.use_gate
        self.a_proj = nn.Linear(config.hidden_size, heads.num_v_heads, bias=False)
        self.b_proj = nn.Linear(config.hidden_size, heads.num_v_heads, bias=False)
        self.A_log = nn.Parameter(torch.empty(heads.num_v_heads))
        self.dt_bias = nn.Parameter(torch.empty(heads.num_v_heads))
        self.o_norm: RMSNorm
        if config.use_gate:
            self.g_proj = nn.Linear(config.hidden_size, heads.value_dim, bias=False)
            self.o_norm = GatedRMSNorm(
                heads.head_v_dim, config.norm_eps, config.output_gate_activation
            )
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
        beta = zero_padding(self.b_proj(x).sigmoid() * self.beta_scale, valid)
        g = zero_padding(log_decay(self.a_proj(x), self.A_log, self.dt_bias), valid)
        state: State | None
        if isinstance(past_state, DeferredState):
            o, state = fused_recurrent_gated_delta_rule(
                q, k, v, g=g, beta=beta, initial_state=past_state, output_final_state=True,
                use_qk_l2norm_in_kernel=True,
            )  # fmt: skip
        else:
            o, state = chunk_gated_delta_rule(
                q, k, v, g=g, beta=beta, initial_state=past_state, output_final_state=True,
                use_qk_l2norm_in_kernel=True,
            )  # fmt: skip
        assert state is not None
        return o, state

    def normalize_output(self, x: Tensor, o: Tensor) -> Tensor:
        if not self.use_gate:
            return self.o_norm(o)  # type: ignore[no-any-return]
        return self.o_norm(o, self.g_proj(x).view_as(o))  # type: ignore[no-any-return]


class _GatedDeltaNetPreTrainedModel(PortablePreTrainedModel):
    config_class = GatedDeltaNetConfig

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, GatedDeltaNet):
            initialize_decay(module.A_log, module.dt_bias, 0.0, 16.0)


class GatedDeltaNetModel(_GatedDeltaNetPreTrainedModel, PortableModel):
    mixer = staticmethod(GatedDeltaNet)


class GatedDeltaNetForCausalLM(_GatedDeltaNetPreTrainedModel, PortableForCausalLM):
    backbone = GatedDeltaNetModel
