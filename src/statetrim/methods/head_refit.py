"""Head refit: remove heads one by one, always the one whose loss a refit can best compensate.

The squared error of a layer's output without a head, after refitting the output projection to the
remaining heads, has a closed form. With P the inverse of the read-out's second moment over the
remaining heads and W their output weights, removing head h costs tr(W_h P_hh^-1 W_h'). Then W
becomes W - W_h P_hh^-1 P_h:, and P the Schur complement of P_hh (a block step of the optimal brain
surgeon).
"""

import torch
from torch import Tensor

from ..statistics.readouts import REFIT_STATISTICS
from .contract import HeadEvidence, needs, selects

_DAMPING = 1e-6  # relative to the read-out's mean square: dead channels have no inverse


@selects("head")
@needs(*REFIT_STATISTICS)
def select(evidence: HeadEvidence, keep: int) -> Tensor:
    """Heads [groups, keep] that stay when others are removed one by one, always the one that
    leaves the least squared error of the layer's output after a refit."""
    groups, heads, width, hidden = evidence.output_weight.shape
    moment = evidence.statistic("readout_moment")
    weight = evidence.output_weight.reshape(-1, hidden).mT
    scale = _DAMPING * moment.diagonal().mean().clamp_min(1e-300)
    inverse = torch.linalg.inv(moment + scale * torch.eye(len(moment), dtype=moment.dtype))
    remaining = torch.ones(groups, heads, dtype=torch.bool)
    for _ in range(groups * (heads - keep)):
        costs = torch.full((groups, heads), float("inf"), dtype=moment.dtype)
        for group, head in remaining.nonzero().tolist():
            if int(remaining[group].sum()) > keep:
                costs[group, head] = _cost(weight, inverse, _block(group * heads + head, width))
        cheapest = int((costs <= costs.min() * (1 + 1e-12)).flatten().nonzero()[0])  # ties: lowest
        remaining.view(-1)[cheapest] = False
        weight, inverse = _remove_head(weight, inverse, _block(cheapest, width))
    return torch.stack([row.nonzero().squeeze(1) for row in remaining])


def _block(head: int, width: int) -> slice:
    """The channels of a head, numbered over all groups, in the read-out."""
    return slice(head * width, (head + 1) * width)


def _cost(weight: Tensor, inverse: Tensor, head: slice) -> Tensor:
    """Increase of the layer's squared output error if `head` is removed and the rest refitted."""
    columns = weight[:, head]
    solved: Tensor = torch.linalg.solve(inverse[head, head], columns.mT)
    return (columns * solved.mT).sum()


def _remove_head(weight: Tensor, inverse: Tensor, head: slice) -> tuple[Tensor, Tensor]:
    """Refitted weight [hidden, n] and inverse [n, n] without `head`, whose entries become 0."""
    coefficients = torch.linalg.solve(inverse[head, head], inverse[head])  # [width, n]
    weight = weight - weight[:, head] @ coefficients
    inverse = inverse - inverse[:, head] @ coefficients
    weight[:, head], inverse[head], inverse[:, head] = 0.0, 0.0, 0.0
    return weight, inverse
