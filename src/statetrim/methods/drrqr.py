"""DRRQR: the channels that span the others best, by strong rank-revealing QR of [K; Q].

Stacking rows adds Grams, so the choice needs only the sum of the two Gram matrices.
"""

import torch
from torch import Tensor

from ..maths.linalg import strong_rrqr
from .contract import Evidence, Score, combine, needs


@needs("query_gram", "key_gram", "query_unit_gram", "key_unit_gram")
def select(
    evidence: Evidence,
    keep: int,
    *,
    score: Score = "qk",
    tolerance: float = 1.5,
    normalized: bool = False,
) -> Tensor:
    """`tolerance` is RRQR's f > 1; `normalized` takes q and k after their L2 norm."""
    kind = "unit_gram" if normalized else "gram"
    grams = combine(score, evidence.statistic(f"query_{kind}"), evidence.statistic(f"key_{kind}"))
    heads = [strong_rrqr(gram, keep, tolerance) for gram in grams]
    evidence.notes.update(
        swaps=[head.swaps for head in heads],
        rank=[head.rank for head in heads],
        converged=[head.converged for head in heads],
        gain=[round(head.last_gain, 6) for head in heads],
    )
    return torch.stack([head.kept for head in heads])
