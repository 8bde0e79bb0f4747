"""Head rank: remove the heads whose states have the highest rank and norm (arXiv 2602.02195).

The paper's Joint Rank-Norm Pruning: a head's score is a weighted mean of the share of its singular
values above 1e-4 of the largest, and of its nuclear norm over the layer's largest.
"""

from torch import Tensor

from ..statistics.readouts import REFIT_STATISTICS
from .contract import HeadEvidence, needs, selects, top

RANK_WEIGHT = 0.5  # the paper has such a weight, alpha, and does not publish its value


@selects("head")
@needs(*REFIT_STATISTICS, "state_ranks")
def select(evidence: HeadEvidence, keep: int) -> Tensor:
    """Heads [groups, keep] of the lowest weighted mean of effective rank and nuclear norm."""
    states, ranks, norms = evidence.statistic("state_ranks").unbind(-1)  # [value heads]
    norm_share = norms / norms.max().clamp_min(1e-300)
    saturation = RANK_WEIGHT * ranks / states + (1 - RANK_WEIGHT) * norm_share
    return top(-saturation.reshape(*evidence.table_shape, -1).mean(-1), keep)
