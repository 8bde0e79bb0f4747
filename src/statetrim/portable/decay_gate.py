"""How a gated layer's decay starts: the ranges fla draws `A_log` and `dt_bias` from."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import initialization as init

SHORTEST_STEP, LONGEST_STEP = 0.001, 0.1


def log_decay(raw: Tensor, a_log: Tensor, dt_bias: Tensor) -> Tensor:
    """`-exp(A_log) * softplus(raw + dt_bias)`, in float32 at least."""
    if raw.dtype != torch.float64:
        raw, a_log, dt_bias = raw.float(), a_log.float(), dt_bias.float()
    return -a_log.exp() * F.softplus(raw + dt_bias)


def draw_decay(a_log: nn.Parameter, dt_bias: nn.Parameter, low: float, high: float) -> None:
    """`exp(A_log)` uniform in (low, high); `softplus(dt_bias)` log-uniform, 0.001 to 0.1."""
    init.copy_(a_log, torch.empty_like(a_log).uniform_(low, high).clamp(min=1e-6).log())
    spread = math.log(LONGEST_STEP / SHORTEST_STEP)
    step = (torch.rand_like(dt_bias) * spread + math.log(SHORTEST_STEP)).exp()
    init.copy_(dt_bias, step + torch.log(-torch.expm1(-step)))  # the inverse of softplus
