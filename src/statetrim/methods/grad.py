"""Grad: first-order change of the loss, |weight x gradient| summed over a channel's weights.

The gradient is summed over the data first and made absolute last, as the paper's formula reads.
"""

from torch import Tensor

from .contract import Evidence, Score, combine, needs, top


@needs("query_gradient", "key_gradient")
def select(evidence: Evidence, keep: int, *, score: Score = "qk") -> Tensor:
    query = (evidence.query_weight * evidence.statistic("query_gradient")).abs().sum(dim=(-2, -1))
    key = (evidence.key_weight * evidence.statistic("key_gradient")).abs().sum(dim=(-2, -1))
    return top(combine(score, query, key), keep)
