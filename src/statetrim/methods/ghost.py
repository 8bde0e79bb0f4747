"""GHOST: what a key channel adds to the outputs, as it is read from the state (arXiv 2602.11408).

Written for the state of Mamba-2, where the state is h and the query is C: the sum of h^2 C^2, which
is the squared error of the read-out without the channel. The paper compares all channels of a layer
and calibrates again after each cut layer; here each head keeps its own, from one calibration.
"""

from torch import Tensor

from .contract import Evidence, needs, top


@needs("state_read")
def select(evidence: Evidence, keep: int) -> Tensor:
    """Key channels [heads, keep] without which the read-out would have the largest error."""
    return top(evidence.statistic("state_read"), keep)
