"""DRRQR: the key channels that span the others best, by strong rank-revealing QR of [K; Q].

The Gram matrix of stacked rows is the sum of their Gram matrices, which is all that RRQR needs.
"""

from collections.abc import Iterable
from typing import Any

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
    """Key channels [heads, keep] by strong rank-revealing QR of each head's queries and keys.

    `tolerance` is RRQR's f > 1; `normalized` uses q and k after L2 normalisation.
    """
    kind = "unit_gram" if normalized else "gram"
    grams = combine(score, evidence.statistic(f"query_{kind}"), evidence.statistic(f"key_{kind}"))
    return select_by_rrqr(grams, keep, tolerance, evidence.notes)


def select_by_rrqr(
    grams: Iterable[Tensor], keep: int, tolerance: float, notes: dict[str, Any]
) -> Tensor:
    """Kept channels [heads, keep] from each head's Gram matrix [channels, channels].

    Writes "swaps", "rank", "converged" and "gain" to `notes`, lists with an entry per head.
    """
    heads = [strong_rrqr(gram, keep, tolerance) for gram in grams]
    notes.update(
        swaps=[head.swaps for head in heads],
        rank=[head.rank for head in heads],
        converged=[head.converged for head in heads],
        gain=[round(head.last_gain, 6) for head in heads],
    )
    return torch.stack([head.kept for head in heads])
