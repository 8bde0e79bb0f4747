"""Kimi delta attention: fla's `kda` checkpoints, unchanged, in plain PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init

from .causal_lm import PortableForCausalLM, PortableModel
from .config import PortableConfig
from .decay_gate import initialize_decay, log_decay
from .deferred import DeferredState
from .delta_rule import chunk_kda, fused_recurrent_kda
from .mixer import Kernel, Mixer, State, grouped_head_sizes, zero_padding
from .norm import GatedRMSNorm


class KDAConfig(PortableConfig):
    """The fields and defaults of fla's config."""

    model_type = "kda"

    safe_gate: bool = False
    lower_bound: float | None = None
    head_dim: int = 128
    num_v_heads: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        if self.safe_gate and self.lower_bound is None:
            raise ValueError("lower_bound must be set when safe_gate is true (-5 is usual).")
        super().__post_init__(**kwargs)


class KimiDeltaAttention(Mixer):
    """The mixer of KDA: the delta rule with one decay per key channel."""

    def __init__(self, config: KDAConfig, layer_idx: int) -> None:
        heads = grouped_head_sizes(
            config.num_heads, config.num_v_heads, config.head_dim, config.expand_v
        )
        super().__init__(config, heads, layer_idx)
        hidden, rank = config.hidden_size, heads.head_v_dim
        gate_dim = heads.num_v_heads * heads.head_k_dim
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

    def initialize_gates(self) -> None:
        initialize_decay(self.A_log, self.dt_bias, 1.0, 16.0)
        if self.safe_gate:
            init.zeros_(self.A_log)

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
        kernel: Kernel = chunk_kda
        if isinstance(past_state, DeferredState):
            kernel = fused_recurrent_kda
        return kernel(
            q, k, v, g=g, beta=beta, initial_state=past_state, output_final_state=True,
            use_qk_l2norm_in_kernel=True,
        )  # fmt: skip

    def _log_decay(self, x: Tensor) -> Tensor:
        """The log decay [rows, time, value heads, head_k_dim]; bounded if `lower_bound` is set."""
        gate = self.f_proj(x).unflatten(-1, (self.heads.num_v_heads, -1))
        a_log, bias = self.A_log.unsqueeze(-1), self.dt_bias.view(self.heads.num_v_heads, -1)
        if self.lower_bound is None:
            return log_decay(gate, a_log, bias)
        if gate.dtype != torch.float64:
            gate, a_log, bias = gate.float(), a_log.float(), bias.float()
        return self.lower_bound * torch.sigmoid(a_log.exp() * (gate + bias))


class KDAModel(PortableModel):
    config_class = KDAConfig
    mixer = staticmethod(KimiDeltaAttention)


class KDAForCausalLM(PortableForCausalLM):
    config_class = KDAConfig
    backbone = KDAModel
