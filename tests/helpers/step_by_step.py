"""The recurrences of `statetrim.portable.kernels` one token at a time, as they are defined."""

import torch
from torch import Tensor


def step_by_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    g: Tensor | None = None,
    beta: Tensor | None = None,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The output [batch, time, value heads, head_v_dim] and the final state.

    `g` [batch, time, value heads] or [..., head_k_dim] is the log decay (None: no decay); without
    `beta` nothing is erased. Arithmetic is in the dtype of the inputs.
    """
    group = v.shape[2] // k.shape[2]
    q = q.repeat_interleave(group, 2) * q.shape[-1] ** -0.5
    k = k.repeat_interleave(group, 2)
    state = v.new_zeros(v.shape[0], v.shape[2], k.shape[-1], v.shape[-1])
    if initial_state is not None:
        state = initial_state
    if g is not None and g.dim() == 3:
        g = g.unsqueeze(-1)
    outputs = []
    for t in range(v.shape[1]):
        if g is not None:
            state = g[:, t].exp().unsqueeze(-1) * state
        write = v[:, t]
        if beta is not None:
            error = write - torch.einsum("bhkv,bhk->bhv", state, k[:, t])
            write = beta[:, t].unsqueeze(-1) * error
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, t], write)
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
    return torch.stack(outputs, 1), state
