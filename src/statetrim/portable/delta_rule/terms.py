"""Shared by all forms of the recurrences: dtype of the arithmetic, scale, key norm, first state."""

import torch
from torch import Tensor


def l2_normalized(x: Tensor, eps: float = 1e-6) -> Tensor:
    """`x / sqrt(|x|^2 + eps)` over the last dimension, as in fla's kernels."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + eps)


def l2_normalized_pair(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """`q` and `k` normalized, in the dtype of the arithmetic."""
    dtype = arithmetic_dtype(q)
    return l2_normalized(q.to(dtype)), l2_normalized(k.to(dtype))


def arithmetic_dtype(x: Tensor) -> torch.dtype:
    """float64 for float64 inputs, else float32."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def resolve_scale(q: Tensor, scale: float | None) -> float:
    """`scale`, by default 1 / sqrt(head_k_dim)."""
    return float(q.shape[-1]) ** -0.5 if scale is None else scale


def initial_state_or_zeros(k: Tensor, v: Tensor, initial_state: Tensor | None) -> Tensor:
    """The initial state in the dtype of `v`, or zeros; `k`, `v` [batch, heads, ..., dim]."""
    if initial_state is not None:
        return initial_state.to(v.dtype)
    return v.new_zeros(v.shape[0], v.shape[1], k.shape[-1], v.shape[-1])


def decay_by_channel(g: Tensor) -> Tensor:
    """[batch, time, value heads, head_k_dim or 1] from a log decay per head or per key channel."""
    return g if g.dim() == 4 else g.unsqueeze(-1)
