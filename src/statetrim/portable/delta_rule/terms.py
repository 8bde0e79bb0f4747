"""What all forms of the recurrences share: dtype of the arithmetic, scale, norm, first state."""

import torch
from torch import Tensor


def l2_normalized(x: Tensor, eps: float = 1e-6) -> Tensor:
    """`x / sqrt(|x|^2 + eps)` over the last dimension, as fla's kernels do it."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + eps)


def l2_normalized_pair(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    dtype = arithmetic_dtype(q)
    return l2_normalized(q.to(dtype)), l2_normalized(k.to(dtype))


def arithmetic_dtype(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def resolve_scale(q: Tensor, scale: float | None) -> float:
    return float(q.shape[-1]) ** -0.5 if scale is None else scale


def initial_state_or_zeros(k: Tensor, v: Tensor, initial_state: Tensor | None) -> Tensor:
    """`k`, `v` [batch, heads, ..., dim], already in the dtype of the arithmetic."""
    if initial_state is not None:
        return initial_state.to(v.dtype)
    return v.new_zeros(v.shape[0], v.shape[1], k.shape[-1], v.shape[-1])
