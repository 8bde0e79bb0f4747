"""Grad: first-order change of the loss, |weight x gradient| summed over a channel's weights.

As in the paper's formula, gradients are summed over the data before the absolute value is taken.
"""

from torch import Tensor

from .contract import Evidence, Score, combine, needs, top


@needs("query_gradient", "key_gradient")
def select(evidence: Evidence, keep: int, *, score: Score = "qk") -> Tensor:
    """Key channels [heads, keep] of the largest |weight x gradient|, summed over weights."""
    query = (evidence.query_weight * evidence.statistic("query_gradient")).abs().sum(dim=(-2, -1))
    key = (evidence.key_weight * evidence.statistic("key_gradient")).abs().sum(dim=(-2, -1))
    return top(combine(score, query, key), keep)
