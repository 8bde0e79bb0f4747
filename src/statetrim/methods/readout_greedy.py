"""Read-out greedy: the value channels from which least squares rebuilds the layer's output best.

One channel after the other: always the one whose addition lowers the squared error of the head's
output most, when the output weights of those chosen are refitted. With G the Gram of the
read-out and B that of the output weights, channel j lowers it by (G B G)_jj / G_jj; then its part
leaves G (a step of Cholesky's elimination).
"""

import torch
from torch import Tensor

from .contract import ValueEvidence, needs, selects


@selects("value")
@needs("readout_gram")
def select(evidence: ValueEvidence, keep: int) -> Tensor:
    weights = evidence.output_weight.flatten(2)  # [heads, channels, copies * hidden]
    grams = zip(evidence.statistic("readout_gram"), weights @ weights.mT, strict=True)
    return torch.stack([_greedy(gram, reader, keep) for gram, reader in grams])


def _greedy(gram: Tensor, weight_gram: Tensor, keep: int) -> Tensor:
    """Channels [keep] of one head, ascending; both matrices are [channels, channels]."""
    residual = gram.clone()
    # Below this a channel is a combination of those chosen, up to rounding.
    min_pivot = len(gram) * torch.finfo(gram.dtype).eps * gram.diagonal().max()
    chosen = torch.zeros(len(gram), dtype=torch.bool)
    for _ in range(keep):
        pivots = residual.diagonal()
        gain = (residual * (residual @ weight_gram)).sum(dim=1) / pivots.clamp_min(
            min_pivot.clamp_min(1e-300)
        )
        gain = gain.masked_fill(pivots <= min_pivot, 0.0).masked_fill(chosen, -1.0)
        best = int((gain >= gain.max() * (1 - 1e-12)).nonzero()[0])  # a tie: the lowest
        chosen[best] = True
        if pivots[best] > min_pivot:
            residual = residual - torch.outer(residual[:, best], residual[best]) / pivots[best]
    return chosen.nonzero().squeeze(1)
