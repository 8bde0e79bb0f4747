"""Kimi delta attention: fla's `kda` checkpoints, unchanged, in plain PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.configuration_utils import PreTrainedConfig

from .causal_lm import PortableForCausalLM, PortableModel, PortablePreTrainedModel
from .decay_gate import initialize_decay, log_decay
from .deferred import DeferredState
from .delta_rule import chunk_kda, fused_recurrent_kda
from .mixer import Mixer, State, grouped_head_sizes, zero_padding
from .norm import GatedRMSNorm


class KDAConfig(PreTrainedConfig):
    """The fields and defaults of fla's config; `fuse_*` fields are kept but have no effect here."""

    model_type = "kda"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012

    def __init__(
        self,
        attn_mode: str = "chunk",
        hidden_size: int = 2048,
        expand_v: float = 1.0,
        use_short_conv: bool = True,
        allow_neg_eigval: bool = False,
        safe_gate: bool = False,
        lower_bound: float | None = None,
        conv_size: int = 4,
        head_dim: int = 128,
        num_heads: int = 16,
        num_v_heads: int | None = None,
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
        use_l2warp: bool = False,
        vocab_size: int = 32000,
        attnres_block_size: int | None = None,
        **kwargs: Any,
    ) -> None:
        if safe_gate and lower_bound is None:
            raise ValueError("lower_bound must be set when safe_gate is true (-5 is usual).")
        self.attn_mode = attn_mode
        self.hidden_size = hidden_size
        self.expand_v = expand_v
        self.use_short_conv = use_short_conv
        self.allow_neg_eigval = allow_neg_eigval
        self.safe_gate = safe_gate
        self.lower_bound = lower_bound
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


class KimiDeltaAttention(Mixer):
    """The mixer of KDA: the delta rule with one decay per key channel."""

    def __init__(self, config: KDAConfig, layer_idx: int) -> None:
        heads = grouped_head_sizes(
            config.num_heads, config.num_v_heads, config.head_dim, config.expand_v
        )
        conv_size = config.conv_size if config.use_short_conv else None
        conv_bias = getattr(config, "conv_bias", False)
        super().__init__(config.hidden_size, heads, layer_idx, conv_size, conv_bias)
        hidden, rank = config.hidden_size, heads.head_v_dim
        gate_dim = heads.num_v_heads * heads.head_k_dim
        self.beta_scale = 2.0 if config.allow_neg_eigval else 1.0
        self.safe_gate, self.lower_bound = config.safe_gate, config.lower_bound
        self.f_proj = nn.Sequential(
            nn.Linear(hidden, rank, bias=False), nn.Linear(rank, gate_dim, bias=False)
        )
        self.b_proj = nn.Linear(hidden, heads.num_v_heads, bias=False)
        self.A_log = nn.Parameter(torch.empty(heads.num_v_heads))
        self.dt_bias = nn.Parameter(torch.empty(gate_dim))
        self.g_proj = nn.Sequential(
            nn.Linear(hidden, rank, bias=False), nn.Linear(rank, heads.value_dim, bias=True)
        )
        self.o_norm = GatedRMSNorm(rank, config.norm_eps, "sigmoid")

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
        g = zero_padding(self._log_decay(x), valid)
        state: State | None
        if isinstance(past_state, DeferredState):
            o, state = fused_recurrent_kda(
                q, k, v, g=g, beta=beta, initial_state=past_state, output_final_state=True,
                use_qk_l2norm_in_kernel=True,
            )  # fmt: skip
        else:
            o, state = chunk_kda(
                q, k, v, g=g, beta=beta, initial_state=past_state, output_final_state=True,
                use_qk_l2norm_in_kernel=True,
            )  # fmt: skip
        assert state is not None
        return o, state

    def _log_decay(self, x: Tensor) -> Tensor:
        """The log decay [rows, time, value heads, head_k_dim]; bounded if `lower_bound` is set."""
        gate = self.f_proj(x).unflatten(-1, (self.heads.num_v_heads, -1))
        a_log, bias = self.A_log.unsqueeze(-1), self.dt_bias.view(self.heads.num_v_heads, -1)
        if self.lower_bound is None:
            return log_decay(gate, a_log, bias)
        if gate.dtype != torch.float64:
            gate, a_log, bias = gate.float(), a_log.float(), bias.float()
        return self.lower_bound * torch.sigmoid(a_log.exp() * (gate + bias))

    def normalize_output(self, x: Tensor, o: Tensor) -> Tensor:
        return self.o_norm(o, self.g_proj(x).view_as(o))  # type: ignore[no-any-return]


class _KDAPreTrainedModel(PortablePreTrainedModel):
    config_class = KDAConfig

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, KimiDeltaAttention):
            initialize_decay(module.A_log, module.dt_bias, 1.0, 16.0)
            if module.safe_gate:
                init.zeros_(module.A_log)


class KDAModel(_KDAPreTrainedModel, PortableModel):
    mixer = staticmethod(KimiDeltaAttention)


class KDAForCausalLM(_KDAPreTrainedModel, PortableForCausalLM):
    backbone = KDAModel
