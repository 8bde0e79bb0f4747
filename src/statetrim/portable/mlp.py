"""The SwiGLU feed-forward block, with fla's parameter names and sizing rule."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class GatedMLP(nn.Module):
    """Default width: `hidden_ratio * 2 / 3` times hidden size, rounded up to a multiple of 256."""

    def __init__(
        self, hidden_size: int, hidden_ratio: int | None, intermediate_size: int | None
    ) -> None:
        super().__init__()
        if intermediate_size is None:
            target_size = int(hidden_size * (4 if hidden_ratio is None else hidden_ratio) * 2 / 3)
            intermediate_size = 256 * ((target_size + 255) // 256)
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out
