"""Random cuts of the same shape, layers and heads as a cut, which it is compared with.

They are made by masking the original, so nothing is written.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..artifacts.plan import Plan, load_carried_plan
from ..artifacts.steps import read_origin, shape_text
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
        kept = [self.plan.kept, self.plan.kept_values or {}, self.plan.kept_heads or {}]
        tables = [{str(layer): x.tolist() for layer, x in table.items()} for table in kept]
        digest = hashlib.sha256(json.dumps(tables).encode()).hexdigest()
        return {"shape": self.shape, "seed": self.plan.seed, "plan": digest}


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
    """A plan that keeps as many channels or heads as `like` in every layer and head, drawn at
    random."""
    generator = torch.Generator().manual_seed(seed)
    geometry = original.geometry

    def drawn(tables: Mapping[int, Tensor], widths: Sequence[int]) -> dict[int, Tensor]:
        result = {}
        for (layer, table), width in zip(tables.items(), widths, strict=True):
            order = torch.rand(len(table), width, generator=generator).argsort(1)
            result[layer] = order[:, : table.shape[1]].sort(1).values
        return result

    if like.kept_heads is not None:
        heads = _random_heads(like.kept_heads, geometry.group, geometry.num_k_heads, generator)
        return replace(like, kept_heads=heads, head_method=RANDOM_METHOD, seed=seed)
    widths = [geometry.shapes[layer] for layer in like.kept]
    values = like.kept_values and drawn(like.kept_values, [value for _, value in widths])
    kept = drawn(like.kept, [key for key, _ in widths])
    return replace(like, kept=kept, kept_values=values, method=RANDOM_METHOD, seed=seed)


def _random_heads(
    tables: Mapping[int, Tensor], group: int, key_heads: int, generator: torch.Generator
) -> dict[int, Tensor]:
    """As many value heads of every key head as in `tables`, or as many key heads with all their
    value heads."""
    result = {}
    for layer, table in tables.items():
        rows, each = table.shape
        kept_keys = torch.rand(key_heads, generator=generator).argsort()[:rows].sort().values
        order = torch.rand(rows, group, generator=generator).argsort(1)[:, :each].sort(1).values
        result[layer] = group * kept_keys.unsqueeze(1) + order
    return result
