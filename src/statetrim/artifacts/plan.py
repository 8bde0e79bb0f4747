"""Which channels of every head a cut keeps, and which heads, before the cut is made."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor

from ..cut.geometry import Geometry, Target, resolve_heads
from ..cut.rows import kept_head_masks, kept_masks, over_all_heads
from ..cut.shape import CHANNEL_AXES, Axis, ChannelAxis, Kept
from ..errors import StatetrimError
from ..maths.formatting import Table, list_text, lowest_to_highest, shorten
from ..storage.checkpoint import Checkpoint
from ..storage.checkpoint_files import path_inside
from ..storage.output import ARTIFACTS
from .record import Artifact, as_fields

PLAN_FILE = f"{ARTIFACTS}/plan.json"
"""The plan of a cut, in its directory."""
COUNTED: Mapping[Axis, str] = {
    "head": "value heads", "key": "channels of a key head", "value": "channels of a value head"
}  # fmt: skip
"""What the count of an axis counts, in every layer."""


@dataclass(frozen=True, eq=False)
class AxisPlan:
    """What every layer keeps along one axis, and the method that chose it."""

    kept: Mapping[int, Tensor]  # by layer, int64, as in `Kept`
    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[int, Any] = field(default_factory=dict)  # layer -> what the method reported

    def __str__(self) -> str:
        """The method with its options."""
        listed = list_text(f"{name}={value}" for name, value in self.options.items())
        return shorten(self.method, 40) + (f" ({listed})" if self.options else "")

    def validate(self) -> None:
        if not self.kept or min(self.kept) < 0 or max(self.kept) >= 10**6:
            raise ValueError("kept must list the channels of layers, which count from 0")


@dataclass(frozen=True, eq=False)
class Plan(Artifact):
    """What each layer keeps along the axes that are cut, how it was chosen, and for which model.

    Heads are counted before channels: a plan that cuts both lists the channels of the heads that
    stay.
    """

    KIND = "plan"
    INDENT = None

    axes: Mapping[Axis, AxisPlan]
    seed: int = 0
    lineage: Mapping[str, Any] = field(default_factory=dict)

    @property
    def layers(self) -> list[int]:
        """The layers that the plan is about."""
        return list(next(iter(self.axes.values())).kept)

    def counts(self, axis: Axis) -> dict[int, int]:
        """Layer -> the number of channels kept in every head, or of value heads kept."""
        lengths = {}
        for layer, table in self.axes[axis].kept.items():
            lengths[layer] = table.numel() if axis == "head" else table.shape[1]
        return lengths

    @property
    def to(self) -> str:
        """What the plan keeps, as `--to` says it; an axis that is not cut keeps 100%."""
        parts = [f"{self.counts('head')[self.layers[0]]}heads"] if "head" in self.axes else []
        sides = []
        for axis in CHANNEL_AXES:
            counts = self.counts(axis) if axis in self.axes else {}
            sides.append([str(counts.get(layer, "100%")) for layer in self.layers])
        shapes = [f"{keys}x{values}" for keys, values in zip(*sides, strict=True)]
        if len(set(shapes)) > 1:
            by_layer = zip(self.layers, shapes, strict=True)
            parts.append(",".join(f"{layer}={shape}" for layer, shape in by_layer))
        elif set(self.axes) != {"head"}:
            parts.append(shapes[0])
        return ":".join(parts)

    def __repr__(self) -> str:
        kept = " and ".join(f"{count} {COUNTED[axis]}" for axis, count in self._ranges())
        methods = " and ".join(dict.fromkeys(map(str, self.axes.values())))
        return f"<Plan by {methods}: keeps {kept}, {len(self.layers)} layers>"

    def table(self) -> Table:
        """A summary with a row per fact."""
        rows = {}
        for axis, count in self._ranges():
            rows[COUNTED[axis]] = f"{count}, by {self.axes[axis]}"
        rows |= {"layers": str(len(self.layers)), "seed": str(self.seed)}
        rows["model"] = shorten(self.lineage.get("source"), 16)
        return Table("Plan", (), list(rows.items()))

    def _ranges(self) -> Iterator[tuple[Axis, str]]:
        """Axis and what is kept of it, such as "32", or "16 to 32" with widths by layer."""
        for axis in self.axes:
            yield axis, lowest_to_highest(self.counts(axis).values())

    @property
    def digest(self) -> str:
        """SHA-256 of what is kept."""
        kept = {axis: as_fields(plan)["kept"] for axis, plan in self.axes.items()}
        return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()

    def kept_in_layer(self, layer: int) -> Kept:
        """What one layer keeps of the axes that are cut."""
        return {axis: plan.kept[layer] for axis, plan in self.axes.items()}

    def kept_masks(self, model: Checkpoint) -> dict[str, dict[int, Tensor]]:
        """Tensor -> dimension -> bool mask [size] of the entries that stay, for the tensors of
        `model` that lose some."""
        before, masks = model.geometry, dict[str, dict[int, Tensor]]()
        for name, rows in model.channel_rows.items():
            kept = over_all_heads(self.kept_in_layer(rows.layer), before)
            masks[name] = kept_masks(rows.channel_rows, kept)
        for name, rows in model.head_rows.items() if "head" in self.axes else ():
            heads, of_tensor = self.axes["head"].kept[rows.layer], masks.setdefault(name, {})
            for dim, mask in kept_head_masks(rows.channel_rows, heads, before.group).items():
                of_tensor[dim] = mask & of_tensor.get(dim, mask)
        return {name: of_tensor for name, of_tensor in masks.items() if of_tensor}

    def pruned_geometry(self, geometry: Geometry) -> Geometry:
        """`geometry` after the cut; raises StatetrimError if the plan does not fit it."""
        for plan in self.axes.values():
            if set(plan.kept) != set(geometry.layers):
                differing = sorted(set(plan.kept) ^ set(geometry.layers))[:5]
                raise StatetrimError(
                    f"the plan and the model differ in their linear-attention layers: {differing}"
                )
        after = geometry
        if "head" in self.axes:
            after = _with_fewer_heads(geometry, self.axes["head"].kept)
        shapes = {}
        for layer, (keys, values) in geometry.shapes.items():
            widths: dict[ChannelAxis, int] = {"key": keys, "value": values}
            for axis in CHANNEL_AXES:
                if axis in self.axes:
                    label = f"the plan's {axis} channels of layer {layer}"
                    table = self.axes[axis].kept[layer]
                    if len(table) != after.heads(axis):
                        raise StatetrimError(
                            f"{label} are {list(table.shape)}, not {after.heads(axis)} heads of "
                            f"{table.shape[1]} channels"
                        )
                    _check_ascending(label, table, widths[axis])
                    widths[axis] = table.shape[1]
            shapes[layer] = widths["key"], widths["value"]
        after = after.with_shapes(shapes)
        if after == geometry:
            raise StatetrimError("the plan keeps everything, so nothing would change")
        return after

    def validate(self) -> None:
        if not self.axes:
            raise ValueError("axes must list what is kept")


def arbitrary_plan(target: Target) -> Plan:
    """A plan that keeps the first channels and heads, for sizes that do not depend on which."""
    before, after, axes = target.before, target.after, dict[Axis, AxisPlan]()
    for axis in target.axes:
        kept = {}
        for layer in before.layers:
            if axis == "head":
                key_heads = before.group * torch.arange(after.num_k_heads).unsqueeze(1)
                kept[layer] = key_heads + torch.arange(after.group)
            else:
                channels = torch.arange(after.for_layer(layer).width(axis))
                kept[layer] = channels.repeat(after.heads(axis), 1)
        axes[axis] = AxisPlan(kept, "none")
    return Plan(axes)


def load_carried_plan(cut: Checkpoint) -> Plan | None:
    """The plan in the cut's directory, by which it was pruned; None if it carries none."""
    return Plan.load(path_inside(cut.path, PLAN_FILE)) if (cut.path / PLAN_FILE).exists() else None


def _with_fewer_heads(geometry: Geometry, kept: Mapping[int, Tensor]) -> Geometry:
    """`geometry` with the `kept` heads; refuses those that `Plan.to` cannot say."""
    shape = next(iter(kept.values())).shape
    for layer, table in kept.items():
        label = f"the plan's heads of layer {layer}"
        if table.shape != shape:
            raise StatetrimError(f"{label} are {list(table.shape)}, not {list(shape)}")
        _check_ascending(label, table.flatten(), geometry.num_v_heads)
        key_heads = table // geometry.group
        is_one_key_head = bool((key_heads == key_heads[:, :1]).all())
        if not is_one_key_head or not bool((key_heads[:, 0].diff() > 0).all()):
            raise StatetrimError(
                f"{label} are not rows of {shape[1]} heads that read with the same key head"
            )
    after = geometry.with_heads(shape[0], prod(shape))
    allowed = resolve_heads(prod(shape), geometry)
    if after != allowed:
        raise StatetrimError(
            f"{prod(shape)} value heads can be kept as {allowed.group} of each of "
            f"{allowed.num_k_heads} key heads, not as the plan's {shape[1]} of {shape[0]}"
        )
    return after


def _check_ascending(label: str, numbers: Tensor, count: int) -> None:
    """Raise StatetrimError unless `numbers` ascend, in each row, within 0 to `count` - 1."""
    if int(numbers.min()) < 0 or int(numbers.max()) >= count:
        raise StatetrimError(f"{label} go beyond 0 to {count - 1}")
    if not bool((numbers.diff() > 0).all()):
        raise StatetrimError(f"{label} are not in ascending order without repeats")
