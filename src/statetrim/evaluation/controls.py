"""Random cuts of the same shape, layers and heads as a cut, which it is compared with.

They are made by masking the original, so nothing is written.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..artifacts.plan import AxisPlan, Plan, load_carried_plan
from ..artifacts.steps import read_origin, shape_text
from ..cut.geometry import Geometry
from ..cut.shape import Axis
from ..errors import StatetrimError
from ..judging.control import MIN_CONTROLS, RANDOM_METHOD
from ..storage.checkpoint import Checkpoint
from ..storage.output import ARTIFACTS

SAMPLES = 16  # of each task, per random cut
CONTROLS = 8  # whose samples are those of one more model; of a quick look only MIN_CONTROLS
QUICK_LOOK = 32  # samples: with fewer
_LATER_STEPS = ("refit.json", "recover.json")


@dataclass(frozen=True)
class MaskedModel:
    """The original with the channels or heads masked that a plan prunes."""

    name: str
    plan: Plan
    shape: str
    of: str = ""  # the cut that it is before a refit or training; a random cut is of none

    @property
    def record(self) -> dict[str, Any]:
        """What identifies it, for the lineage of scores."""
        return {"shape": self.shape, "seed": self.plan.seed, "plan": self.plan.digest}


def masked_models(
    original: Checkpoint, cuts: Mapping[str, Checkpoint], most_samples: int, *, lossy: bool
) -> list[MaskedModel]:
    """Random cuts for every shape among `cuts`; and each cut as it was before a refit or training,
    which random cuts do not have. With a `lossy` state it is masked too, because random cuts keep
    theirs exact. A cut of another model, or without a plan, has none.
    """
    count = MIN_CONTROLS if most_samples < QUICK_LOOK else CONTROLS
    result, shapes = list[MaskedModel](), list[str]()
    for name, cut in cuts.items():
        plan = _own_plan(original, cut)
        if plan is None:
            continue
        shape = shape_text(plan.pruned_geometry(original.geometry))
        if shape not in shapes:
            shapes.append(shape)
            for seed in range(count):
                label = f"random {len(shapes)}.{seed + 1}"
                result.append(MaskedModel(label, random_plan(plan, original, seed), shape))
        changed = any((cut.path / ARTIFACTS / step).is_file() for step in _LATER_STEPS)
        if changed or lossy:
            result.append(MaskedModel(f"{name} as cut", plan, shape, name))
    return result


def _own_plan(original: Checkpoint, cut: Checkpoint) -> Plan | None:
    """The plan by which `cut` was made from `original`; None if it was not, or has no valid one."""
    origin = read_origin(cut, original)
    if origin is None or origin["source"] != original.digest:
        return None
    try:
        return load_carried_plan(cut)
    except StatetrimError:
        return None


def random_plan(like: Plan, original: Checkpoint, seed: int) -> Plan:
    """A plan that keeps as many channels or heads as `like` everywhere, drawn at random."""
    generator = torch.Generator().manual_seed(seed)
    geometry, axes = original.geometry, dict[Axis, AxisPlan]()
    for axis, plan in like.axes.items():
        kept = {}
        for layer, table in plan.kept.items():
            if axis == "head":
                kept[layer] = _random_heads(table, geometry, generator)
            else:
                width = geometry.for_layer(layer).width(axis)
                kept[layer] = _random_rows(len(table), width, table.shape[1], generator)
        axes[axis] = AxisPlan(kept, RANDOM_METHOD)
    return replace(like, axes=axes, seed=seed)


def _random_heads(like: Tensor, geometry: Geometry, generator: torch.Generator) -> Tensor:
    """As many value heads of every key head as in `like`, or as many key heads with all their value
    heads."""
    rows, each = like.shape
    key_heads = _random_rows(1, geometry.num_k_heads, rows, generator).mT
    return geometry.group * key_heads + _random_rows(rows, geometry.group, each, generator)


def _random_rows(rows: int, width: int, keep: int, generator: torch.Generator) -> Tensor:
    """`keep` numbers below `width`, ascending, in each of `rows`."""
    return torch.rand(rows, width, generator=generator).argsort(1)[:, :keep].sort(1).values
