"""Energy: a channel's share of the squared normalised queries and keys. Not in the paper."""

from torch import Tensor

from .contract import Evidence, Score, combine, needs, top


@needs("query_unit_gram", "key_unit_gram")
def select(evidence: Evidence, keep: int, *, score: Score = "qk") -> Tensor:
    """Key channels [heads, keep] of the largest summed squares, after L2 normalisation."""
    query = evidence.statistic("query_unit_gram").diagonal(dim1=-2, dim2=-1)
    key = evidence.statistic("key_unit_gram").diagonal(dim1=-2, dim2=-1)
    return top(combine(score, query, key), keep)
