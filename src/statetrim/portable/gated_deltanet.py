"""Gated DeltaNet: fla's `gated_deltanet` checkpoints, unchanged, in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .causal_lm import PortableForCausalLM, PortableModel
from .config import PortableConfig
from .decay_gate import initialize_decay, log_decay
from .deferred import DeferredState
from .delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule
from .mixer import Kernel, Mixer, State, grouped_head_sizes, zero_padding


class GatedDeltaNetConfig(PortableConfig):
    """The fields and defaults of fla's config."""

    model_type = "gated_deltanet"

    expand_v: float = 2.0
    use_gate: bool = True
    head_dim: int = 256
    num_heads: int = 6
    num_v_heads: int | None = None
    num_hidden_layers: int = 21
    fuse_linear_cross_entropy: bool = False
    output_gate_activation: str = "swish"


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
        super().__init__(config, heads, layer_idx)
        self.a_proj = nn.Linear(config.hidden_size, heads.num_v_heads, bias=False)
        self.b_proj = nn.Linear(config.hidden_size, heads.num_v_heads, bias=False)
        self.A_log = nn.Parameter(torch.empty(heads.num_v_heads))
        self.dt_bias = nn.Parameter(torch.empty(heads.num_v_heads))
        self.add_output_norm(config, config.output_gate_activation if config.use_gate else None)

    def initialize_gates(self) -> None:
        initialize_decay(self.A_log, self.dt_bias, 0.0, 16.0)

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
        kernel: Kernel = chunk_gated_delta_rule
        if isinstance(past_state, DeferredState):
            kernel = fused_recurrent_gated_delta_rule
        return kernel(
            q, k, v, g=g, beta=beta, initial_state=past_state, output_final_state=True,
            use_qk_l2norm_in_kernel=True,
        )  # fmt: skip


class GatedDeltaNetModel(PortableModel):
    config_class = GatedDeltaNetConfig
    mixer = staticmethod(GatedDeltaNet)


class GatedDeltaNetForCausalLM(PortableForCausalLM):
    config_class = GatedDeltaNetConfig
    backbone = GatedDeltaNetModel
