"""Rand: channels or heads drawn at random, the baseline that every other method has to beat."""

import torch
from torch import Tensor

from .contract import Evidence, HeadEvidence, ValueEvidence, selects, top


@selects("key", "value", "head")
def select(evidence: Evidence | ValueEvidence | HeadEvidence, keep: int) -> Tensor:
    """Channels [heads, keep], or heads [groups, keep], drawn by the evidence's generator."""
    return top(torch.rand(evidence.table_shape, generator=evidence.generator), keep)
