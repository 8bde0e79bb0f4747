"""L1: sum of the magnitudes of a channel's query and key weights."""

from torch import Tensor

from .contract import Evidence, Score, combine, top


def select(evidence: Evidence, keep: int, *, score: Score = "qk") -> Tensor:
    """Key channels [heads, keep] whose weights have the largest L1 norm."""
    query = evidence.query_weight.abs().sum(dim=(-2, -1))
    key = evidence.key_weight.abs().sum(dim=(-2, -1))
    return top(combine(score, query, key), keep)
