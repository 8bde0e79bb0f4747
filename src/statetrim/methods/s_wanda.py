"""S-Wanda: weight magnitudes, weighted by each input feature's norm on calibration data."""

from torch import Tensor

from .contract import Evidence, Score, combine, needs, top


@needs("input_square")
def select(evidence: Evidence, keep: int, *, score: Score = "qk") -> Tensor:
    """Key channels [heads, keep] of the largest |weight| x norm of the input feature, summed."""
    feature_norm = evidence.statistic("input_square").sqrt()
    query = (evidence.query_weight.abs() @ feature_norm).sum(dim=-1)
    key = (evidence.key_weight.abs() @ feature_norm).sum(dim=-1)
    return top(combine(score, query, key), keep)
