"""The decay of gated layers, and its initialization with the same ranges as in fla."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import initialization as init

DT_MIN, DT_MAX = 0.001, 0.1


def log_decay(gate: Tensor, a_log: Tensor, dt_bias: Tensor) -> Tensor:
    """`-exp(A_log) * softplus(gate + dt_bias)`, in float32, or float64 for a float64 gate."""
    if gate.dtype != torch.float64:
        gate, a_log, dt_bias = gate.float(), a_log.float(), dt_bias.float()
    return -a_log.exp() * F.softplus(gate + dt_bias)


def initialize_decay(a_log: nn.Parameter, dt_bias: nn.Parameter, low: float, high: float) -> None:
    """Draws `exp(A_log)` uniformly from (low, high), `softplus(dt_bias)` log-uniformly from
    (DT_MIN, DT_MAX); changes both parameters in place."""
    init.copy_(a_log, torch.empty_like(a_log).uniform_(low, high).clamp(min=1e-6).log())
    log_range = math.log(DT_MAX / DT_MIN)
    dt = (torch.rand_like(dt_bias) * log_range + math.log(DT_MIN)).exp()
    init.copy_(dt_bias, dt + torch.log(-torch.expm1(-dt)))  # the inverse of softplus
