"""Statistics of sampled states."""

import torch
from torch import Tensor

from ..artifacts.statistics import LayerStatistics
from ..runtime.states import StateBlock
from ..storage.checkpoint import Checkpoint
from .statistic import Statistic

STATE_EVERY = 16  # tokens between two states that are sampled
RANK_THRESHOLD = 1e-4  # singular values above this part of the largest count (arXiv 2602.02195)


def _state_read(block: StateBlock, model: Checkpoint) -> Tensor:
    """The squares of what each key channel contributes to the output of every 16th token,
    [key heads, channels]: q^2 |row of the state|^2."""
    batch, samples = block.states.shape[:2]
    ends = torch.arange(1, samples + 1) * STATE_EVERY
    query = block.query[:, ends.clamp(max=block.query.shape[1]) - 1].square()
    query = torch.unflatten(query, 0, (batch, -1)).sum(1)  # [batch, samples, key heads, ..]
    rows = block.states.square().sum(-1)  # [batch, samples, value heads, channels]
    rows = torch.unflatten(rows, 2, (query.shape[2], -1)).sum(3)
    return (query * rows).sum((0, 1))


def _state_ranks(block: StateBlock, model: Checkpoint) -> Tensor:
    """Of the last state of each block: the number, the sum of ranks (as a share of the full rank)
    and of nuclear norms, [value heads, 3]."""
    singular = torch.linalg.svdvals(block.states[:, -1])  # [batch, value heads, rank]
    counted = (singular > RANK_THRESHOLD * singular[..., :1]).double().mean(-1)
    return torch.stack([torch.ones_like(counted), counted, singular.sum(-1)], -1).sum(0)


def _states(sums: LayerStatistics) -> Tensor:
    """The number of states taken, [value heads]."""
    return sums["state_ranks"][:, 0]


STATE_STATISTICS = (
    Statistic("state_read", "key_heads keys", StateBlock, _state_read),
    Statistic("state_ranks", "output_heads 3", StateBlock, _state_ranks, _states),
)
