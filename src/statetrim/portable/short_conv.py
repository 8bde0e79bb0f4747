"""Depthwise causal convolution over time, with fla's parameter names and cache layout."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class ShortConvolution(nn.Conv1d):
    """`weight` [channels, 1, width], `bias` [channels] or None; then SiLU, or nothing."""

    def __init__(
        self, channels: int, width: int, bias: bool = False, activation: str | None = "silu"
    ) -> None:
        super().__init__(channels, channels, width, groups=channels, bias=bias)
        self.activation = activation

    def forward(  # type: ignore[override]
        self, x: Tensor, lengths: Tensor | None = None, cache: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """`x` [batch, time, channels] -> the same, and the next cache [batch, channels, width].

        `lengths` [batch] tells how many leading tokens of each row are real; the cache ends there.
        """
        width = self.kernel_size[0]
        inputs = x.mT
        past = x.new_zeros(x.shape[0], x.shape[2], width) if cache is None else cache.to(x.dtype)
        inputs = torch.cat([past, inputs], -1)
        y = F.conv1d(inputs[..., 1:], self.weight, self.bias, groups=x.shape[2]).mT
        if self.activation is not None:
            y = F.silu(y)
        if lengths is None:
            return y, inputs[..., -width:]
        window = lengths.view(-1, 1, 1) + torch.arange(width, device=x.device)
        return y, inputs.gather(-1, window.expand(-1, x.shape[2], -1))
