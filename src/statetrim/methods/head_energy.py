"""Head energy: the squared norm of a head's contribution to the layer's output.

Computed from the second moment of its read-out after norm and gate, and its output weights. Whether
other heads could replace it is not considered.
"""

from torch import Tensor

from ..statistics.readouts import REFIT_STATISTICS
from .contract import HeadEvidence, needs, selects, top


@selects("head")
@needs(*REFIT_STATISTICS)
def select(evidence: HeadEvidence, keep: int) -> Tensor:
    """Heads [groups, keep] with the largest squared norm of their contribution to the output."""
    groups, heads, width, _ = evidence.output_weight.shape
    moment = evidence.statistic("readout_moment").reshape(
        groups * heads, width, groups * heads, width
    )
    grams = moment.diagonal(dim1=0, dim2=2).permute(2, 0, 1)  # [heads of all groups, width, width]
    weight = evidence.output_weight.flatten(0, 1)
    energy = (weight * (grams @ weight)).sum(dim=(1, 2))
    return top(energy.reshape(groups, heads), keep)
