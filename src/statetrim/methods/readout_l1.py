"""Read-out L1: how large the weights are that write a value channel, times those that read it."""

from torch import Tensor

from .contract import ValueEvidence, selects, top


@selects("value")
def select(evidence: ValueEvidence, keep: int) -> Tensor:
    write_norm = evidence.value_weight.abs().sum(dim=(-2, -1))
    read_norm = evidence.output_weight.abs().sum(dim=(-2, -1))
    return top(write_norm * read_norm, keep)
