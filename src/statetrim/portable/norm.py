"""RMS norms, computed in float32 at least and returned in the dtype of the input."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class RMSNorm(nn.Module):
    """`weight` [size], over the last dimension."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x if x.dtype == torch.float64 else x.float()
        return F.rms_norm(wide, wide.shape[-1:], self.weight.to(wide.dtype), self.eps).to(x.dtype)


class GatedRMSNorm(RMSNorm):
    """The norm times an activation of a gate of the same shape."""

    def __init__(self, size: int, eps: float, activation: str) -> None:
        super().__init__(size, eps)
        self.activation = torch.sigmoid if activation == "sigmoid" else F.silu

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:  # type: ignore[override]
        wide = x if x.dtype == torch.float64 else x.float()
        normed = F.rms_norm(wide, wide.shape[-1:], self.weight.to(wide.dtype), self.eps)
        return (normed * self.activation(gate.to(wide.dtype))).to(x.dtype)
