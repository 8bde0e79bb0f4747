"""The base class of the mixers: projections, convolutions, padding, cache, output projection."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .cache import RecurrentCache, RecurrentLayer
from .config import PortableConfig
from .deferred import DeferredState
from .norm import GatedRMSNorm, RMSNorm
from .rows import sequence_rows
from .short_conv import ShortConvolution

State = Tensor | DeferredState
Kernel = Callable[..., tuple[Tensor, Any]]
"""A function of `delta_rule`; returns the output and, as every mixer requests it, the state."""


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


def grouped_head_sizes(
    num_heads: int, num_v_heads: int | None, head_dim: int, expand_v: float
) -> HeadSizes:
    """Head sizes by the rule of fla's Gated DeltaNet and KDA; raises ValueError as fla would."""
    num_v_heads = num_heads if num_v_heads is None else num_v_heads
    head_v_dim = int(head_dim * expand_v)
    if not math.isclose(head_dim * expand_v, head_v_dim, rel_tol=1e-5):
        raise ValueError(f"expand_v={expand_v} times head_dim={head_dim} must be a whole number.")
    if num_v_heads % num_heads:
        raise ValueError(f"num_v_heads={num_v_heads} must be a multiple of num_heads={num_heads}.")
    return HeadSizes(num_heads, num_v_heads, head_dim, head_v_dim)


class Mixer(nn.Module):
    """A linear-attention mixer. Subclasses add gates and call their kernel as a global of their
    module, where calibration and analysis hook it."""

    o_norm: RMSNorm  # of subclasses
    g_proj: nn.Module  # of subclasses whose `o_norm` is gated

    def __init__(
        self, config: PortableConfig, heads: HeadSizes, layer_idx: int, qk_activation: str = "silu"
    ) -> None:
        super().__init__()
        self.heads = heads
        self.layer_idx = layer_idx
        self.use_short_conv = config.use_short_conv
        self.qk_activation = qk_activation
        self.beta_scale = 2.0 if config.allow_neg_eigval else 1.0
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
        width = self.heads.head_v_dim
        if gate_activation is None:
            self.o_norm = RMSNorm(width, config.norm_eps)
        else:
            self.g_proj = nn.Linear(config.hidden_size, self.heads.value_dim, bias=False)
            self.o_norm = GatedRMSNorm(width, config.norm_eps, gate_activation)

    def initialize_gates(self) -> None:
        """Initialize the parameters that are in no submodule; by default there are none."""

    @abstractmethod
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

        `x` [rows, time, hidden_size] is the mixer's input; `q`, `k`, `v` [rows, time, heads, dim]
        come after convolution and activation; `valid` [rows, time] is False at padding (None: no
        padding). A `DeferredState` as `past_state` means that one token is being decoded.
        """

    def normalize_output(self, x: Tensor, o: Tensor) -> Tensor:
        """Output norm and gate of `o` [rows, time, value heads, head_v_dim], before `o_proj`."""
        gates = [self.g_proj(x).view_as(o)] if isinstance(self.o_norm, GatedRMSNorm) else []
        return self.o_norm(o, *gates)  # type: ignore[no-any-return]

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
        past_state = None if layer is None else self._past_state(layer, time, rows is None)
        o, state = self.run_recurrence(x, q, k, v, None if rows is None else rows.valid, past_state)
        if use_cache and layer is not None:
            layer.store(state, conv_states, time)
        out: Tensor = self.o_proj(self.normalize_output(x, o).flatten(2))
        return out if rows is None else rows.scatter(out, batch, time)

    @staticmethod
    def _past_state(layer: RecurrentLayer, time: int, no_padding: bool) -> State | None:
        """The cached state; a single token without gradients gets a `DeferredState` and so runs in
        the decoding kernel, everything else in the chunked one."""
        if time == 1 and no_padding and not torch.is_grad_enabled():
            return layer.decoding_state()
        return layer.recurrent_state

    def _project(
        self, x: Tensor, lengths: Tensor | None, layer: RecurrentLayer | None
    ) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, ...]]:
        """q, k and v [rows, time, heads, dim] after convolution and activation, and the next states
        of the three convolutions, empty if there are none."""
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
        q, k = (x.unflatten(-1, (self.heads.num_k_heads, -1)) for x in (q, k))
        return q, k, v.unflatten(-1, (self.heads.num_v_heads, -1)), conv_states


def zero_padding(x: Tensor, valid: Tensor | None) -> Tensor:
    """`x` [rows, time, ...] with 0 at padding (`valid` [rows, time] is False)."""
    if valid is None:
        return x
    return x * valid.view(*valid.shape, *[1] * (x.dim() - 2)).to(x.dtype)
