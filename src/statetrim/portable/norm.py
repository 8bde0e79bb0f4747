"""RMS norms, computed in float32 (float64 for float64), returned in the dtype of the input."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class RMSNorm(nn.Module):
    """RMS norm over the last dimension; `weight` [size]."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x_float = x if x.dtype == torch.float64 else x.float()
        return F.rms_norm(x_float, x_float.shape[-1:], self.weight.to(x_float.dtype), self.eps).to(
            x.dtype
        )


class GatedRMSNorm(RMSNorm):
    """RMS norm of `x` times the activation (sigmoid or SiLU) of a gate of the same shape."""

    def __init__(self, size: int, eps: float, activation: str) -> None:
        super().__init__(size, eps)
        self.activation = torch.sigmoid if activation == "sigmoid" else F.silu

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:  # type: ignore[override]
        x_float = x if x.dtype == torch.float64 else x.float()
        normed = F.rms_norm(x_float, x_float.shape[-1:], self.weight.to(x_float.dtype), self.eps)
        return (normed * self.activation(gate.to(x_float.dtype))).to(x.dtype)
