"""Statistics of the original -> those of a cut that only removed heads, without running it.

The kept heads have the same read-out as in the original, so the sums that a refit of the cut needs
are rows and columns of the original's sums.
"""

from dataclasses import replace

import torch
from torch import Tensor

from ..artifacts.plan import load_carried_plan
from ..artifacts.statistics import LayerStatistics, Statistics
from ..errors import StatetrimError
from ..storage.checkpoint import Checkpoint
from ..storage.output import ARTIFACTS


def restrict_to_kept_heads(small: Checkpoint, statistics: Statistics) -> Statistics:
    """The sums that a refit of `small` needs, taken from `statistics` of its original if `small`
    only lost heads; all other sums are dropped.

    Otherwise `statistics` are returned unchanged, such as those of `small` itself. Raises
    StatetrimError if recovery has trained `small`, or if these sums are missing.
    """
    plan = load_carried_plan(small)
    if plan is None or plan.kept_heads is None:
        return statistics
    if plan.lineage.get("source") != statistics.lineage.get("source"):
        return statistics
    if (small.path / ARTIFACTS / "recover.json").exists():
        raise StatetrimError(
            f"{small.path} was trained after its heads went, so the original's statistics say "
            f"nothing of it; calibrate it with --original"
        )
    channels = torch.arange(small.geometry.head_v_dim)
    layers: dict[int, LayerStatistics] = {}
    for layer, sums in statistics.layers.items():
        if layer in plan.kept_heads:
            columns = (plan.kept_heads[layer].view(-1, 1) * len(channels) + channels).flatten()
            layers[layer] = _select_columns(sums, columns, layer)
    lineage = {**statistics.lineage, "source": small.digest}
    return replace(statistics, layers=layers, lineage=lineage)


def _select_columns(sums: LayerStatistics, columns: Tensor, layer: int) -> LayerStatistics:
    """Only the sums that a refit needs, restricted to `columns` of the read-out."""
    moment, target = sums.readout_moment, sums.target_moment
    if (
        moment is None
        or target is None
        or moment.dim() != 2
        or target.dim() != 2
        or len(moment) != moment.shape[1]
        or int(columns.max()) >= min(len(moment), target.shape[1])
    ):
        raise StatetrimError(
            f"the statistics of layer {layer} have no usable 'readout_moment'; calibrate again"
        )
    return LayerStatistics(
        sums.tokens,
        readout_moment=moment[columns][:, columns],
        target_moment=target[:, columns],
        target_square=sums.target_square,
    )
