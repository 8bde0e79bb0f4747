"""Head refit: heads go one by one, always the one that the others can best stand in for.

What a layer misses without a head, when the output projection is fitted anew to those left, has a
closed form. With P the inverse of the read-out's second moment over the heads left, and W their
output weights, head h costs |W_h P_hh^-1 W_h'|; then W_h P_hh^-1 P_h: leaves W, and the Schur
complement of P_hh stays of P (the optimal brain surgeon's step, for a block).
"""

import torch
from torch import Tensor

from ..artifacts.statistics import REFIT_SUM_NAMES
from .contract import HeadEvidence, needs, selects

_DAMPING = 1e-6  # of the read-out's mean square: dead channels have no inverse


@selects("head")
@needs(*REFIT_SUM_NAMES)
def select(evidence: HeadEvidence, keep: int) -> Tensor:
    groups, heads, width, hidden = evidence.output_weight.shape
    moment, weight = (
        evidence.statistic("readout_moment"),
        evidence.output_weight.reshape(-1, hidden).mT,
    )
    scale = _DAMPING * moment.diagonal().mean().clamp_min(1e-300)
    inverse = torch.linalg.inv(moment + scale * torch.eye(len(moment), dtype=moment.dtype))
    remaining = torch.ones(groups, heads, dtype=torch.bool)
    for _ in range(groups * (heads - keep)):
        costs = torch.full((groups, heads), float("inf"), dtype=moment.dtype)
        for group, head in remaining.nonzero().tolist():
            if int(remaining[group].sum()) > keep:
                costs[group, head] = _cost(weight, inverse, _block(group * heads + head, width))
        cheapest = int((costs <= costs.min() * (1 + 1e-12)).flatten().nonzero()[0])  # a tie: lowest
        remaining.view(-1)[cheapest] = False
        weight, inverse = _remove_head(weight, inverse, _block(cheapest, width))
    return torch.stack([row.nonzero().squeeze(1) for row in remaining])


def _block(head: int, width: int) -> slice:
    return slice(head * width, (head + 1) * width)


def _cost(weight: Tensor, inverse: Tensor, head: slice) -> Tensor:
    """What the refitted rest would miss, in squares."""
    columns = weight[:, head]
    solved: Tensor = torch.linalg.solve(inverse[head, head], columns.mT)
    return (columns * solved.mT).sum()


def _remove_head(weight: Tensor, inverse: Tensor, head: slice) -> tuple[Tensor, Tensor]:
    """The refitted weight [hidden, n] and the inverse [n, n] of what is left; zero at the head."""
    coefficients = torch.linalg.solve(inverse[head, head], inverse[head])  # [width, n]
    weight = weight - weight[:, head] @ coefficients
    inverse = inverse - inverse[:, head] @ coefficients
    weight[:, head], inverse[head], inverse[:, head] = 0.0, 0.0, 0.0
    return weight, inverse
