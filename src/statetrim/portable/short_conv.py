"""Depthwise causal convolution over time, with fla's parameter names and cache layout."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class ShortConvolution(nn.Conv1d):
    """`weight` [channels, 1, width], `bias` [channels] or None; then SiLU if `activation`."""

    def __init__(
        self, channels: int, width: int, bias: bool = False, activation: str | None = "silu"
    ) -> None:
        super().__init__(channels, channels, width, groups=channels, bias=bias)
        self.activation = activation

    def forward(  # type: ignore[override]
        self, x: Tensor, lengths: Tensor | None = None, cache: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Returns outputs of the shape of `x` [batch, time, channels], and the next cache
        [batch, channels, width].

        Only the first `lengths[i]` tokens of row i are valid; the cache ends with the last of them.
        """
        width = self.kernel_size[0]
        past = x.new_zeros(x.shape[0], x.shape[2], width) if cache is None else cache.to(x.dtype)
        inputs = torch.cat([past.mT, x], 1)  # channels last: contiguous copies
        if x.shape[1] == 1:  # decoding: a weighted sum takes a quarter of the time of conv1d
            sum_dtype = torch.promote_types(x.dtype, torch.float32)  # as conv1d accumulates
            taps = self.weight[:, 0].mT.to(sum_dtype).contiguous()
            y = (inputs[:, 1:].to(sum_dtype) * taps).sum(1, keepdim=True)
            y = (y if self.bias is None else y + self.bias).to(x.dtype)
        else:
            y = F.conv1d(inputs[:, 1:].mT, self.weight, self.bias, groups=x.shape[2]).mT
        if self.activation is not None:
            y = F.silu(y)
        if lengths is None:
            # Cloned: a view would keep the inputs of the whole prompt in memory.
            return y, inputs[:, -width:].clone().mT
        window = lengths.view(-1, 1, 1) + torch.arange(width, device=x.device).view(1, -1, 1)
        return y, inputs.gather(1, window.expand(-1, -1, x.shape[2])).mT
