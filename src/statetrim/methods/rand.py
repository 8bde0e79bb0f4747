"""Rand: channels drawn at random, the baseline every other method has to beat."""

import torch
from torch import Tensor

from ..method import Evidence, top


def select(evidence: Evidence, keep: int) -> Tensor:
    heads, channels = evidence.query_weight.shape[:2]
    return top(torch.rand(heads, channels, generator=evidence.generator), keep)
