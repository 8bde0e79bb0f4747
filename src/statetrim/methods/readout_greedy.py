"""Read-out greedy: the value channels from which least squares best reconstructs the output.

Channels are added one by one, always the one that most lowers the squared error of the head's
output when the output weights of the chosen channels are refitted. With G the Gram matrix of the
read-out and B that of the output weights, channel j lowers it by (G B G)_jj / G_jj; then j is
eliminated from G (a step of Cholesky decomposition).
"""

import torch
from torch import Tensor

from .contract import ValueEvidence, needs, selects


@selects("value")
@needs("readout_gram")
def select(evidence: ValueEvidence, keep: int) -> Tensor:
    """Value channels [heads, keep], added one by one to lower the error after a refit the most."""
    weights = evidence.output_weight.flatten(2)  # [heads, channels, copies * hidden]
    grams = zip(evidence.statistic("readout_gram"), weights @ weights.mT, strict=True)
    return torch.stack([_greedy(gram, reader, keep) for gram, reader in grams])


def _greedy(gram: Tensor, weight_gram: Tensor, keep: int) -> Tensor:
    """Kept channels [keep] of one head, ascending; both matrices are [channels, channels]."""
    residual = gram.clone()
    # Below this, a channel is a combination of the chosen ones, up to rounding.
    min_pivot = len(gram) * torch.finfo(gram.dtype).eps * gram.diagonal().max()
    chosen = torch.zeros(len(gram), dtype=torch.bool)
    for _ in range(keep):
        pivots = residual.diagonal()
        lowered = (residual * (residual @ weight_gram)).sum(dim=1)
        gain = lowered / pivots.clamp_min(min_pivot.clamp_min(1e-300))
        gain = gain.masked_fill(pivots <= min_pivot, 0.0).masked_fill(chosen, -1.0)
        best = int((gain >= gain.max() * (1 - 1e-12)).nonzero()[0])  # ties: the lowest
        chosen[best] = True
        if pivots[best] > min_pivot:
            residual = residual - torch.outer(residual[:, best], residual[best]) / pivots[best]
    return chosen.nonzero().squeeze(1)
