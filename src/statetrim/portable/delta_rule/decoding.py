"""The recurrences token by token, for decoding: writes are collected in a `DeferredState`."""

import torch
from torch import Tensor

from ..deferred import DeferredState
from .terms import (
    arithmetic_dtype,
    decay_by_channel,
    initial_state_or_zeros,
    l2_normalized_pair,
    resolve_scale,
)


def fused_recurrent_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | DeferredState | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
) -> tuple[Tensor, Tensor | DeferredState | None]:
    """The delta rule token by token, for decoding; without gradients. Returns the output [batch,
    time, value heads, head_v_dim] and the final state.

    A `DeferredState` as `initial_state` is updated in place and returned. A tensor is not changed,
    and the final state is None unless `output_final_state`.
    """
    return _decode(
        q, k, v, None, beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel
    )


def fused_recurrent_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | DeferredState | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
) -> tuple[Tensor, Tensor | DeferredState | None]:
    """The delta rule token by token, with log decay `g` [batch, time, value heads], or [batch,
    time, value heads, head_k_dim] in Kimi delta attention; without gradients. Returns what
    `fused_recurrent_delta_rule` does."""
    return _decode(
        q, k, v, decay_by_channel(g), beta, scale, initial_state, output_final_state,
        use_qk_l2norm_in_kernel,
    )  # fmt: skip


fused_recurrent_kda = fused_recurrent_gated_delta_rule


def _decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor,
    scale: float | None,
    initial_state: Tensor | DeferredState | None,
    output_final_state: bool,
    use_qk_l2norm_in_kernel: bool,
) -> tuple[Tensor, Tensor | DeferredState | None]:
    """Any delta rule; `g` [batch, time, value heads, head_k_dim or 1] is the log decay, None
    without one. The final state is `initial_state`, updated in place, if that is a `DeferredState`;
    else a tensor, or None unless `output_final_state`."""
    out_dtype, dtype = v.dtype, arithmetic_dtype(v)
    if use_qk_l2norm_in_kernel:
        q, k = l2_normalized_pair(q, k)
    q, k, v, beta = (x.to(dtype) for x in (q, k, v, beta))
    group = v.shape[2] // k.shape[2]
    q = q.repeat_interleave(group, 2) * resolve_scale(q, scale)
    k = k.repeat_interleave(group, 2)
    decay = None if g is None else g.to(dtype).exp()
    if isinstance(initial_state, DeferredState):
        state = initial_state
    else:
        start_state = initial_state_or_zeros(k.transpose(1, 2), v.transpose(1, 2), initial_state)
        state = DeferredState(start_state.clone() if start_state is initial_state else start_state)
    outputs = []
    for t in range(v.shape[1]):
        factor = None if decay is None else decay[:, t]
        outputs.append(state.step(q[:, t], k[:, t], v[:, t], beta[:, t], factor))
    out = torch.stack(outputs, 1).to(out_dtype)
    if state is initial_state:
        return out, state
    return out, state.flush() if output_final_state else None
