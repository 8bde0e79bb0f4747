"""Read-out RRQR: the value channels that span the others best, by strong rank-revealing QR of the
gated, normalised read-out."""

from torch import Tensor

from .contract import ValueEvidence, needs, selects
from .drrqr import select_by_rrqr


@selects("value")
@needs("readout_gram")
def select(evidence: ValueEvidence, keep: int, *, tolerance: float = 1.5) -> Tensor:
    """Value channels [heads, keep] by strong rank-revealing QR; `tolerance` is RRQR's f > 1."""
    return select_by_rrqr(evidence.statistic("readout_gram"), keep, tolerance, evidence.notes)
