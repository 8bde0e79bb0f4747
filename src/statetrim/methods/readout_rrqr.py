"""Read-out RRQR: the value channels that span the others best, by strong rank-revealing QR of the
gated, normalised read-out."""

import torch
from torch import Tensor

from ..maths.linalg import strong_rrqr
from .contract import ValueEvidence, needs, selects


@selects("value")
@needs("readout_gram")
def select(evidence: ValueEvidence, keep: int, *, tolerance: float = 1.5) -> Tensor:
    """`tolerance` is RRQR's f > 1."""
    heads = [strong_rrqr(gram, keep, tolerance) for gram in evidence.statistic("readout_gram")]
    evidence.notes.update(
        swaps=[head.swaps for head in heads],
        rank=[head.rank for head in heads],
        converged=[head.converged for head in heads],
        gain=[round(head.last_gain, 6) for head in heads],
    )
    return torch.stack([head.kept for head in heads])
