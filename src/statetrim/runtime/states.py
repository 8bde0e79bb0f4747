"""The states a kernel call passes through, a few at a time, from the arguments it was given.

Every recurrence here is one rule, in float64: `S = exp(g) S`, then `S = S + k (beta (v - S'k))'`,
or without `beta` (Mamba-2) `S = S + k v'`. A state is [head_k_dim, head_v_dim].
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..errors import StatetrimError
from .kernel_hooks import L2_EPS, KernelCall

BLOCK = 256
"""Tokens walked at once; what is held does not grow with the sequence."""
MOST_STATES = 32
"""States of every head held at once."""


@dataclass(frozen=True, eq=False)
class Block:
    """What happened within a few tokens, float64."""

    query: Tensor  # [batch, time, key heads, head_k_dim], as the kernel uses it
    key: Tensor
    states: Tensor  # [batch, samples, value heads, head_k_dim, head_v_dim]


def walk(call: KernelCall, every: int) -> Iterator[Block]:
    """The call from its first token to its last, with the state after every `every`-th token.

    `every` is a power of two; the last sample is the final state, whatever the length.
    """
    from ..portable.delta_rule import chunk_states

    given = call.arguments
    if any(given.get(name) is not None for name in ("initial_state", "initial_states")):
        raise StatetrimError("the analysis starts from empty states; run the model without a cache")
    if given.get("cu_seqlens") is not None:
        raise StatetrimError("the analysis takes sequences of one length, not packed ones")
    rule = _rule(call)
    size, time = max(every, min(BLOCK, every * MOST_STATES)), call.key.shape[1]
    state: Tensor | None = None
    for start in range(0, time, size):
        part = slice(start, start + size)
        query, key = (_unit(x[:, part].double(), given) for x in (call.query, call.key))
        value, decay, beta = rule(part)
        states = chunk_states(key, value, decay, beta, state, chunk_size=every)
        state = states[:, -1]
        yield Block(query, key, states)


class _DeltaRule:
    """DeltaNet, Gated DeltaNet and KDA, of transformers, fla and portable alike."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.given = given

    def __call__(self, part: slice) -> tuple[Tensor, Tensor | None, Tensor]:
        given = self.given
        value = given["v"] if "v" in given else given["value"]
        beta = given["beta"][:, part].double()
        if given.get("use_beta_sigmoid_in_kernel"):
            beta = beta.sigmoid() * (2.0 if given.get("allow_neg_eigval") else 1.0)
        return value[:, part].double(), self._log_decay(part, given.get("g")), beta

    def _log_decay(self, part: slice, g: Tensor | None) -> Tensor | None:
        """[batch, time, value heads, head_k_dim or 1]; fla's kernels may be handed the raw gate."""
        if g is None:
            return None
        g = g[:, part].double()
        g = g.unsqueeze(-1) if g.dim() == 3 else g
        if not self.given.get("use_gate_in_kernel"):
            return g
        rate: Tensor = self.given["A_log"].double().exp().reshape(-1, 1)
        bias, bound = self.given.get("dt_bias"), self.given.get("lower_bound")
        raw = g if bias is None else g + bias.double().reshape(g.shape[2], -1)
        if bound is None:
            return -rate * functional.softplus(raw)
        return float(bound) * (rate * raw).sigmoid()


class _Mamba2:
    """`S = exp(dt A) S + B (dt x)'`; B writes, C reads, and value heads share them in groups."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.given = given

    def __call__(self, part: slice) -> tuple[Tensor, Tensor, None]:
        given = self.given
        step = given["dt"][:, part].double()
        if given.get("dt_bias") is not None:
            step = step + given["dt_bias"].double()
        if given.get("dt_softplus"):
            step = functional.softplus(step)
        lowest, highest = given.get("dt_limit") or (0.0, float("inf"))
        step = step.clamp(lowest, highest)
        value = given["hidden_states"][:, part].double() * step.unsqueeze(-1)
        return value, (step * given["A"].double()).unsqueeze(-1), None


def _rule(call: KernelCall) -> _DeltaRule | _Mamba2:
    if call.kernel.endswith(("delta_rule", "kda")):
        return _DeltaRule(call.arguments)
    if call.kernel == "mamba2_chunk_scan":
        return _Mamba2(call.arguments)
    raise StatetrimError(
        f"the analysis does not know the recurrence of {call.kernel!r}; it knows the (gated) delta "
        f"rule, KDA and Mamba-2"
    )


def _unit(x: Tensor, given: Mapping[str, Any]) -> Tensor:
    """`x` after the kernel's own L2 norm, where it has one."""
    if not given.get("use_qk_l2norm_in_kernel"):
        return x
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + L2_EPS)
