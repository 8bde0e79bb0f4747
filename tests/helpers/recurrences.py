"""Recurrences one token at a time, directly from their definitions: slow but easy to check."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def step_by_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    g: Tensor | None = None,
    beta: Tensor | None = None,
    initial_state: Tensor | None = None,
    scale: float | None = None,
    after: Callable[[Tensor, int], Tensor] = lambda state, t: state,
) -> tuple[Tensor, Tensor]:
    """The output [batch, time, value heads, head_v_dim], and the state after every token [batch,
    time, value heads, head_k_dim, head_v_dim], in the dtype of the inputs.

    `S = decay S + k (beta (v - decay S k))'`, read by `q`. The log decay `g` is [batch, time, value
    heads] or [..., head_k_dim] (None: no decay); without `beta` nothing is erased, as in linear
    attention and Mamba-2. Queries are scaled by `head_k_dim ** -0.5` or `scale`. `after` may change
    the state after a token was read.
    """
    group = v.shape[2] // k.shape[2]
    q = q.repeat_interleave(group, 2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    k = k.repeat_interleave(group, 2)
    state = v.new_zeros(v.shape[0], v.shape[2], k.shape[-1], v.shape[-1])
    if initial_state is not None:
        state = initial_state
    if g is not None and g.dim() == 3:
        g = g.unsqueeze(-1)
    outputs, states = [], []
    for t in range(v.shape[1]):
        if g is not None:
            state = g[:, t].exp().unsqueeze(-1) * state
        write = v[:, t]
        if beta is not None:
            error = write - torch.einsum("bhkv,bhk->bhv", state, k[:, t])
            write = beta[:, t].unsqueeze(-1) * error
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, t], write)
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
        state = after(state, t)
        states.append(state)
    return torch.stack(outputs, 1), torch.stack(states, 1)


def naive_kernel(
    arguments: Mapping[str, Any], after: Callable[[Tensor, int], Tensor] = lambda state, t: state
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A kernel call in float64, by the names of its arguments: queries and keys as the recurrence
    uses them, and the outputs and states of `step_by_step`."""
    inputs = {name: x.double() for name, x in arguments.items() if isinstance(x, Tensor)}
    if "dt" in inputs:  # Mamba-2
        step = functional.softplus(inputs["dt"] + inputs["dt_bias"]).clamp(*arguments["dt_limit"])
        q, k, token = inputs["C"], inputs["B"], inputs["hidden_states"]
        output, states = step_by_step(
            q, k, step[..., None] * token, g=step * inputs["A"], scale=1.0, after=after
        )
        return q, k, output + inputs["D"][:, None] * token, states
    q, k, v = (inputs[x if x in inputs else x[0]] for x in ("query", "key", "value"))
    if arguments.get("use_qk_l2norm_in_kernel"):
        q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
    return q, k, *step_by_step(q, k, v, g=inputs.get("g"), beta=inputs["beta"], after=after)
