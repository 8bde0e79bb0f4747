"""Rand: channels drawn at random, the baseline every other method has to beat."""

import torch
from torch import Tensor

from .contract import Evidence, ValueEvidence, serves, top


@serves("key", "value")
def select(evidence: Evidence | ValueEvidence, keep: int) -> Tensor:
    return top(torch.rand(evidence.shape, generator=evidence.generator), keep)
