"""Sums over a whole model -> those of a cut that only removed heads, with no second pass.

The heads that stay read out what they did before, so what a refit needs of the cut model stands
among the sums of the original: the rows and columns of the heads that are left.
"""

from dataclasses import replace

from torch import Tensor

from ..artifacts.plan import Plan
from ..artifacts.statistics import LayerStatistics, Statistics
from ..errors import StatetrimError
from ..storage.checkpoint import Checkpoint, path_inside
from ..storage.output import ARTIFACTS

_PLAN_FILE = f"{ARTIFACTS}/plan.json"


def restrict_to_kept_heads(small: Checkpoint, statistics: Statistics) -> Statistics:
    """`statistics` as they would be of `small`, where they are of the model whose heads `small`
    lacks; any others as they are."""
    if not (small.path / _PLAN_FILE).exists() or small.has_digest(statistics.lineage.get("source")):
        return statistics
    plan = Plan.load(path_inside(small.path, _PLAN_FILE))
    if plan.kept_heads is None or plan.lineage.get("source") != statistics.lineage.get("source"):
        return statistics
    if (small.path / ARTIFACTS / "recover.json").exists():
        raise StatetrimError(
            f"{small.path} was trained after its heads went, so the original's statistics say "
            f"nothing of it; calibrate it with --original"
        )
    width = small.geometry.head_v_dim
    layers = {
        layer: _select_columns(sums, _head_columns(plan.kept_heads[layer], width), layer)
        for layer, sums in statistics.layers.items()
        if layer in plan.kept_heads
    }
    return replace(
        statistics, layers=layers, lineage={**statistics.lineage, "source": small.digest}
    )


def _head_columns(heads: Tensor, width: int) -> Tensor:
    """The read-out's columns of these value heads, in order."""
    return (heads.flatten().unsqueeze(1) * width + heads.new_tensor(range(width))).flatten()


def _select_columns(sums: LayerStatistics, columns: Tensor, layer: int) -> LayerStatistics:
    moment, target = sums.readout_moment, sums.target_moment
    usable = moment is not None and moment.dim() == 2 and len(moment) == moment.shape[1]
    usable = usable and target is not None and target.dim() == 2
    if (
        moment is None
        or target is None
        or not usable
        or not int(columns.max()) < min(len(moment), target.shape[1])
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
