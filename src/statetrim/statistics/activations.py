"""Statistics of queries, keys, their projections, and of sampled states.

Gram matrices are summed separately, before and after the L2 norm, so that one calibration serves
methods that need either. Gradients are signed sums over the data.
"""

from typing import Literal

import torch
from torch import Tensor

from ..artifacts.statistics import LayerStatistics
from ..portable.kernels import l2_normalized
from ..runtime.kernel_hooks import KernelCall, MixerInput
from ..runtime.states import StateBlock
from ..storage.checkpoint import Checkpoint
from .statistic import Gradients, Statistic, magnitudes, traces

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


Side = Literal["query", "key"]


def _gram(side: Side, *, unit: bool = False) -> Statistic:
    """Gram matrices of queries or keys, of `unit` ones after the L2 norm if the kernel has one."""

    def measure(call: KernelCall, model: Checkpoint) -> Tensor:
        activations = call.queries_by_key_head if side == "query" else call.key
        rows = activations.flatten(0, 1).transpose(0, 1).double()  # [heads, tokens, channels]
        rows = l2_normalized(rows) if unit and model.family.normalizes_keys else rows
        return rows.mT @ rows

    kind = "unit_gram" if unit else "gram"
    scale = traces(f"query_{kind}", f"key_{kind}")
    return Statistic(f"{side}_{kind}", "key_heads keys keys", KernelCall, measure, scale)


def _gradient(side: Side) -> Statistic:
    def measure(gradients: Gradients, model: Checkpoint) -> Tensor:
        return gradients.query if side == "query" else gradients.key

    shape, scale = (
        f"key_heads keys {side}_copies hidden",
        magnitudes("query_gradient", "key_gradient"),
    )
    return Statistic(f"{side}_gradient", shape, Gradients, measure, scale)


KEY_STATISTICS = (
    Statistic(
        "input_square",
        "hidden",
        MixerInput,
        lambda seen, model: seen.hidden.flatten(0, -2).double().square().sum(0),
    ),
    _gram("query"),
    _gram("key"),
    _gram("query", unit=True),
    _gram("key", unit=True),
    _gradient("query"),
    _gradient("key"),
)
