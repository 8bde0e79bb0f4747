"""Read-out energy: the squared norm of a value channel's contribution to the layer's output.

Its summed square after norm and gate, times the squared norm of its output weights: Wanda's product
of weight and activation for whole columns (FLAP), ignoring cancellation between channels.
"""

from torch import Tensor

from .contract import ValueEvidence, needs, selects, top


@selects("value")
@needs("readout_gram")
def select(evidence: ValueEvidence, keep: int) -> Tensor:
    """Value channels [heads, keep] of the largest summed square x squared output weights."""
    energy = evidence.statistic("readout_gram").diagonal(dim1=-2, dim2=-1)
    return top(energy * evidence.output_weight.square().sum(dim=(-2, -1)), keep)
