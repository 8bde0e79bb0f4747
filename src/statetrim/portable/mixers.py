"""The mixers of DeltaNet, Gated DeltaNet and Kimi delta attention, with fla's weights.

A mixer calls its kernels as globals of this module, where calibration and analysis hook them.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import initialization as init

from .configs import DeltaNetConfig, GatedDeltaNetConfig, KDAConfig, PortableConfig
from .kernels import (
    DeferredState,
    chunk_delta_rule,
    chunk_gated_delta_rule,
    chunk_kda,
    fused_recurrent_delta_rule,
    fused_recurrent_gated_delta_rule,
    fused_recurrent_kda,
)
from .layers import RecurrentCache, RecurrentLayer, RMSNorm, ShortConvolution, sequence_rows

State = Tensor | DeferredState
Kernel = Callable[..., tuple[Tensor, Any]]
DT_MIN, DT_MAX = 0.001, 0.1
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": lambda x: x,  # already applied with the convolution
    "identity": lambda x: x,
    "relu": F.relu,
    "elu": lambda x: F.elu(x) + 1,
}


@dataclass(frozen=True)
class HeadSizes:
    """Head counts and widths; value head `u` reads key head `u // (num_v_heads // num_k_heads)`."""

    num_k_heads: int
    num_v_heads: int
    head_k_dim: int
    head_v_dim: int

    @property
    def key_dim(self) -> int:
        """Key channels of all key heads together."""
        return self.num_k_heads * self.head_k_dim

    @property
    def value_dim(self) -> int:
        """Value channels of all value heads together."""
        return self.num_v_heads * self.head_v_dim


class Mixer(nn.Module):
    """A linear-attention mixer. Subclasses name their kernels, and add beta and decay."""

    o_norm: RMSNorm  # of subclasses
    qk_norm = "l2"

    def __init__(
        self, config: PortableConfig, heads: HeadSizes, layer_idx: int, qk_activation: str = "silu"
    ) -> None:
        super().__init__()
        self.heads = heads
        self.layer_idx = layer_idx
        self.use_short_conv = config.use_short_conv
        self.qk_activation = qk_activation
        self.beta_scale = 2.0 if config.allow_neg_eigval else 1.0
        self.g_proj: nn.Module | None = None  # of subclasses whose output is gated
        hidden_size = config.hidden_size
        self.q_proj = nn.Linear(hidden_size, heads.key_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, heads.key_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, heads.value_dim, bias=False)
        self.o_proj = nn.Linear(heads.value_dim, hidden_size, bias=False)
        if config.use_short_conv:
            size, bias = config.conv_size, getattr(config, "conv_bias", False)
            silu = "silu" if qk_activation == "silu" else None
            self.q_conv1d = ShortConvolution(heads.key_dim, size, bias, silu)
            self.k_conv1d = ShortConvolution(heads.key_dim, size, bias, silu)
            self.v_conv1d = ShortConvolution(heads.value_dim, size, bias)

    def add_output_norm(self, config: PortableConfig, gate_activation: str | None) -> None:
        """Set `o_norm`, and `g_proj` unless `gate_activation` is None."""
        if gate_activation is not None:
            self.g_proj = nn.Linear(config.hidden_size, self.heads.value_dim, bias=False)
        self.o_norm = RMSNorm(self.heads.head_v_dim, config.norm_eps, gate_activation)

    def initialize_gates(self) -> None:
        """Initialize the parameters that are in no submodule; by default there are none."""

    @abstractmethod
    def kernels(self) -> tuple[Kernel, Kernel]:
        """The kernels of this mixer: in chunks, and for decoding."""

    @abstractmethod
    def beta_and_decay(self, x: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Beta [rows, time, value heads] in (0, 1), None for 1, and the log decay, None for no
        decay; `x` [rows, time, hidden_size] is the mixer's input."""

    def run_recurrence(
        self,
        x: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        valid: Tensor | None,
        past_state: State | None,
    ) -> tuple[Tensor, State]:
        """Compute gates, call the kernel; returns outputs [rows, time, value heads, head_v_dim] and
        the final state.

        `q`, `k`, `v` [rows, time, heads, dim] come after convolution and activation; `valid` [rows,
        time] is False at padding (None: no padding). A `DeferredState` as `past_state` means that
        one token is being decoded.
        """
        beta, g = self.beta_and_decay(x)
        beta = torch.ones_like(v[..., 0]) if beta is None else beta
        chunked, decoding = self.kernels()
        return (decoding if isinstance(past_state, DeferredState) else chunked)(
            q,
            k,
            v,
            beta=_zero_padding(beta * self.beta_scale, valid),
            g=None if g is None else _zero_padding(g, valid),
            initial_state=past_state,
            output_final_state=True,
            use_qk_l2norm_in_kernel=self.qk_norm == "l2",
        )

    def normalize_output(self, x: Tensor, o: Tensor) -> Tensor:
        """Output norm and gate of `o` [rows, time, value heads, head_v_dim], before `o_proj`."""
        gate = None if self.g_proj is None else self.g_proj(x).view_as(o)
        return self.o_norm(o, gate)  # type: ignore[no-any-return]

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: RecurrentCache | None = None,
        use_cache: bool = False,
        cu_seqlens: Tensor | None = None,
    ) -> Tensor:
        """[batch, time, hidden_size] -> [batch, time, hidden_size], zero at padding. A cache in
        `past_key_values` is read, and with `use_cache` updated in place.

        `attention_mask` [batch, time] is 0 at padding, which may be anywhere; `cu_seqlens`
        [sequences + 1] has the boundaries of sequences packed into a batch of one, as in fla.
        """
        batch, time = hidden_states.shape[:2]
        rows = sequence_rows(attention_mask, cu_seqlens, time)
        x = hidden_states if rows is None else rows.gather(hidden_states)
        layer = None if past_key_values is None else past_key_values.layers[self.layer_idx]
        q, k, v, conv_states = self._project(x, None if rows is None else rows.lengths, layer)
        past_state: State | None = None
        if layer is not None:
            decodes = time == 1 and rows is None and not torch.is_grad_enabled()
            past_state = layer.decoding_state() if decodes else layer.recurrent_state
        o, state = self.run_recurrence(x, q, k, v, None if rows is None else rows.valid, past_state)
        if use_cache and layer is not None:
            layer.store(state, conv_states, time)
        out: Tensor = self.o_proj(self.normalize_output(x, o).flatten(2))
        return out if rows is None else rows.scatter(out, batch, time)

    def _project(
        self, x: Tensor, lengths: Tensor | None, layer: RecurrentLayer | None
    ) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, ...]]:
        """q, k and v [rows, time, heads, dim], and the next states of the convolutions, if any."""
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        conv_states: tuple[Tensor, ...] = ()
        if self.use_short_conv:
            past_conv = layer.conv_state if layer is not None and layer.conv_state else (None,) * 3
            q, q_state = self.q_conv1d(q, lengths, past_conv[0])
            k, k_state = self.k_conv1d(k, lengths, past_conv[1])
            v, v_state = self.v_conv1d(v, lengths, past_conv[2])
            conv_states = (q_state, k_state, v_state)
        else:
            v = F.silu(v)
            if self.qk_activation == "silu":
                q, k = F.silu(q), F.silu(k)
        activation = ACTIVATIONS[self.qk_activation]
        q, k = (activation(x.unflatten(-1, (self.heads.num_k_heads, -1))) for x in (q, k))
        if self.qk_norm == "sum":
            q, k = (F.normalize(x, p=1.0, dim=-1, eps=1e-6) for x in (q, k))
        return q, k, v.unflatten(-1, (self.heads.num_v_heads, -1)), conv_states


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
        widths = []
        for field, expand in (("expand_k", config.expand_k), ("expand_v", config.expand_v)):
            size = config.hidden_size * expand
            if not math.isclose(size, round(size)) or round(size) % config.num_heads:
                raise ValueError(
                    f"{field}={expand} times hidden_size={config.hidden_size} must be a multiple "
                    f"of num_heads={config.num_heads}."
                )
            widths.append(round(size) // config.num_heads)
        heads = HeadSizes(config.num_heads, config.num_heads, *widths)
        super().__init__(config, heads, layer_idx, config.qk_activation)
        self.qk_norm, self.use_beta = config.qk_norm, config.use_beta
        if config.use_beta:
            self.b_proj = nn.Linear(config.hidden_size, config.num_heads, bias=False)
        self.add_output_norm(config, "swish" if config.use_gate else None)

    def kernels(self) -> tuple[Kernel, Kernel]:
        return chunk_delta_rule, fused_recurrent_delta_rule

    def beta_and_decay(self, x: Tensor) -> tuple[Tensor | None, Tensor | None]:
        return self.b_proj(x).sigmoid() if self.use_beta else None, None


class GatedDeltaNet(Mixer):
    """The mixer of Gated DeltaNet: the delta rule with one decay per head."""

    def __init__(self, config: GatedDeltaNetConfig, layer_idx: int) -> None:
        if config.output_gate_activation not in ("swish", "silu", "sigmoid"):
            raise ValueError(
                f"output_gate_activation={config.output_gate_activation!r} is not supported, "
                "only 'swish', 'silu' and 'sigmoid'."
            )
        heads = _grouped_head_sizes(config)
        super().__init__(config, heads, layer_idx)
        self.a_proj = nn.Linear(config.hidden_size, heads.num_v_heads, bias=False)
        self.b_proj = nn.Linear(config.hidden_size, heads.num_v_heads, bias=False)
        self.A_log = nn.Parameter(torch.empty(heads.num_v_heads))
        self.dt_bias = nn.Parameter(torch.empty(heads.num_v_heads))
        self.add_output_norm(config, config.output_gate_activation if config.use_gate else None)

    def initialize_gates(self) -> None:
        _initialize_decay(self.A_log, self.dt_bias, 0.0, 16.0)

    def kernels(self) -> tuple[Kernel, Kernel]:
        return chunk_gated_delta_rule, fused_recurrent_gated_delta_rule

    def beta_and_decay(self, x: Tensor) -> tuple[Tensor | None, Tensor | None]:
        return self.b_proj(x).sigmoid(), _log_decay(self.a_proj(x), self.A_log, self.dt_bias)


class KimiDeltaAttention(Mixer):
    """The mixer of KDA: the delta rule with one decay per key channel."""

    def __init__(self, config: KDAConfig, layer_idx: int) -> None:
        heads = _grouped_head_sizes(config)
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
        self.o_norm = RMSNorm(rank, config.norm_eps, "sigmoid")

    def initialize_gates(self) -> None:
        _initialize_decay(self.A_log, self.dt_bias, 1.0, 16.0)
        if self.safe_gate:
            init.zeros_(self.A_log)

    def kernels(self) -> tuple[Kernel, Kernel]:
        return chunk_kda, fused_recurrent_kda

    def beta_and_decay(self, x: Tensor) -> tuple[Tensor | None, Tensor | None]:
        gate = self.f_proj(x).unflatten(-1, (self.heads.num_v_heads, -1))
        a_log, bias = self.A_log.unsqueeze(-1), self.dt_bias.view(self.heads.num_v_heads, -1)
        return self.b_proj(x).sigmoid(), _log_decay(gate, a_log, bias, self.lower_bound)


def _grouped_head_sizes(config: GatedDeltaNetConfig | KDAConfig) -> HeadSizes:
    """Head sizes by the rule of fla's Gated DeltaNet and KDA; raises ValueError as fla would."""
    num_heads, head_dim, expand_v = config.num_heads, config.head_dim, config.expand_v
    num_v_heads = num_heads if config.num_v_heads is None else config.num_v_heads
    head_v_dim = int(head_dim * expand_v)
    if not math.isclose(head_dim * expand_v, head_v_dim, rel_tol=1e-5):
        raise ValueError(f"expand_v={expand_v} times head_dim={head_dim} must be a whole number.")
    if num_v_heads % num_heads:
        raise ValueError(f"num_v_heads={num_v_heads} must be a multiple of num_heads={num_heads}.")
    return HeadSizes(num_heads, num_v_heads, head_dim, head_v_dim)


def _log_decay(
    gate: Tensor, a_log: Tensor, dt_bias: Tensor, lower_bound: float | None = None
) -> Tensor:
    """`-exp(A_log) * softplus(gate + dt_bias)`, or with a bound `bound * sigmoid(exp(A_log) * (gate
    + dt_bias))`; in float32, or float64 for a float64 gate."""
    if gate.dtype != torch.float64:
        gate, a_log, dt_bias = gate.float(), a_log.float(), dt_bias.float()
    if lower_bound is None:
        return -a_log.exp() * F.softplus(gate + dt_bias)
    return lower_bound * torch.sigmoid(a_log.exp() * (gate + dt_bias))


def _initialize_decay(a_log: nn.Parameter, dt_bias: nn.Parameter, low: float, high: float) -> None:
    """Draws `exp(A_log)` uniformly from (low, high), `softplus(dt_bias)` log-uniformly from
    (DT_MIN, DT_MAX), as fla does; changes both parameters in place."""
    init.copy_(a_log, torch.empty_like(a_log).uniform_(low, high).clamp(min=1e-6).log())
    log_range = math.log(DT_MAX / DT_MIN)
    dt = (torch.rand_like(dt_bias) * log_range + math.log(DT_MIN)).exp()
    init.copy_(dt_bias, dt + torch.log(-torch.expm1(-dt)))  # the inverse of softplus


def _zero_padding(x: Tensor, valid: Tensor | None) -> Tensor:
    """`x` [rows, time, ...] with 0 at padding (`valid` [rows, time] is False)."""
    if valid is None:
        return x
    return x * valid.view(*valid.shape, *[1] * (x.dim() - 2)).to(x.dtype)
