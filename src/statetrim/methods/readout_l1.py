"""Read-out L1: how large the weights are that write a value channel, times those that read it."""

from torch import Tensor

from .contract import ValueEvidence, serves, top


@serves("value")
def select(evidence: ValueEvidence, keep: int) -> Tensor:
    written = evidence.value_weight.abs().sum(dim=(-2, -1))
    read = evidence.output_weight.abs().sum(dim=(-2, -1))
    return top(written * read, keep)
