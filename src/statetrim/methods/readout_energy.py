"""Read-out energy: what a value channel contributes to the layer's output, on its own.

Its mean square behind norm and gate, times the squares of the output weights that read it: Wanda's
product of weight and activation, for whole columns (FLAP), without cancellation between channels.
"""

from torch import Tensor

from .contract import ValueEvidence, needs, selects, top


@selects("value")
@needs("readout_gram")
def select(evidence: ValueEvidence, keep: int) -> Tensor:
    energy = evidence.statistic("readout_gram").diagonal(dim1=-2, dim2=-1)
    return top(energy * evidence.output_weight.square().sum(dim=(-2, -1)), keep)
