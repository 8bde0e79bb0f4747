"""Product: query energy times key energy; a channel matters only if it is written *and* read.

Not in the paper. With `score` q or k it equals `energy` with that score.
"""

from torch import Tensor

from .contract import Evidence, Score, combine, needs, top


@needs("query_unit_gram", "key_unit_gram")
def select(evidence: Evidence, keep: int, *, score: Score = "qk") -> Tensor:
    """Key channels [heads, keep] of the largest query energy times key energy."""
    query = evidence.statistic("query_unit_gram").diagonal(dim1=-2, dim2=-1)
    key = evidence.statistic("key_unit_gram").diagonal(dim1=-2, dim2=-1)
    return top(query * key if score == "qk" else combine(score, query, key), keep)
