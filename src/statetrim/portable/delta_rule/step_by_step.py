"""The recurrences one token at a time: the reference for the other forms. All return the output
[batch, time, value heads, head_v_dim] and the final state."""

import torch
from torch import Tensor

from .terms import arithmetic_dtype, initial_state_or_zeros, resolve_scale


def recurrent_linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Linear attention without decay, one token at a time; returns the output and the final
    state."""
    return _recurrent(q, k, v, None, None, scale, initial_state)


def recurrent_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The delta rule, one token at a time; returns the output and the final state. q and k are used
    as they are, without an L2 norm."""
    return _recurrent(q, k, v, None, beta, scale, initial_state)


def recurrent_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The gated delta rule, one token at a time, with log decay `g` [batch, time, value heads];
    returns the output and the final state. q and k are used as they are, without an L2 norm."""
    return _recurrent(q, k, v, g.unsqueeze(-1), beta, scale, initial_state)


def recurrent_kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Kimi delta attention, one token at a time, with log decay `g` [batch, time, value heads,
    head_k_dim]; returns the output and the final state. q and k are used as they are, without an L2
    norm."""
    return _recurrent(q, k, v, g, beta, scale, initial_state)


def _recurrent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    scale: float | None,
    initial_state: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Any rule: `g` [batch, time, value heads, head_k_dim or 1] or None (no decay); without `beta`,
    linear attention."""
    out_dtype = v.dtype
    q, k, v = (x.to(arithmetic_dtype(v)) for x in (q, k, v))
    group = v.shape[2] // k.shape[2]
    q = q.repeat_interleave(group, 2) * resolve_scale(q, scale)
    k = k.repeat_interleave(group, 2)
    state = initial_state_or_zeros(k.transpose(1, 2), v.transpose(1, 2), initial_state)
    outputs = []
    for t in range(v.shape[1]):
        if g is not None:
            state = g[:, t].to(v.dtype).exp().unsqueeze(-1) * state
        write = v[:, t]
        if beta is not None:
            error = write - torch.einsum("bhkv,bhk->bhv", state, k[:, t])
            write = beta[:, t].to(v.dtype).unsqueeze(-1) * error
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, t], write)
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
    return torch.stack(outputs, 1).to(out_dtype), state
