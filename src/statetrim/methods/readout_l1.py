"""Read-out L1: L1 norm of a channel's value weights, times that of its output weights."""

from torch import Tensor

from .contract import ValueEvidence, selects, top


@selects("value")
def select(evidence: ValueEvidence, keep: int) -> Tensor:
    """Value channels [heads, keep] of the largest L1 norm of value x that of output weights."""
    write_norm = evidence.value_weight.abs().sum(dim=(-2, -1))
    read_norm = evidence.output_weight.abs().sum(dim=(-2, -1))
    return top(write_norm * read_norm, keep)
