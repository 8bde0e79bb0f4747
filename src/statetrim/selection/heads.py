"""Select whole heads, layer by layer.

If all key heads are kept, each key head keeps some of its value heads; else some key heads are kept
with all their value heads. A method sees groups of heads in both cases: one group per key head, or
one group of all key heads.
"""

from typing import Any

import torch
from torch import Tensor

from ..artifacts.plan import Plan
from ..artifacts.statistics import Statistics
from ..geometry import Geometry
from ..methods.contract import HeadEvidence
from ..progress import OnProgress, Progress
from ..serving.target import Target
from ..storage.checkpoint import Checkpoint
from .choice import MethodChoice, layer_generator, plan_lineage


def choose_heads(
    model: Checkpoint,
    target: Target,
    choice: MethodChoice,
    seed: int,
    statistics: Statistics | None,
    progress: OnProgress,
) -> Plan:
    """A plan that removes whole heads; kept heads keep all their channels."""
    before, after = model.geometry, target.after
    kept: dict[int, Tensor] = {}
    notes: dict[str, Any] = {}
    for number, layer in enumerate(before.layers, start=1):
        sums = statistics.layers[layer] if statistics else None
        grouped_weight = _group_heads(model.output_weight(layer), before, after)
        evidence = HeadEvidence(grouped_weight, layer_generator(seed, layer, "head"), sums)
        keep = after.group if after.num_k_heads == before.num_k_heads else after.num_k_heads
        kept[layer] = _value_heads(choice.select_layer(evidence, layer, keep), before, after)
        if evidence.notes:
            notes[f"{layer} heads"] = evidence.notes
        progress(Progress(number, len(before.layers), "layers"))
    return Plan(
        kept={
            layer: torch.arange(keys).repeat(before.num_k_heads, 1)
            for layer, (keys, _) in before.shapes.items()
        },
        requested="all",
        method="none",
        seed=seed,
        kept_heads=kept,
        requested_heads=str(after.num_v_heads),
        head_method=choice.method.name,
        lineage=plan_lineage(model, statistics, [choice]),
        notes=notes,
    )


def _group_heads(weight: Tensor, before: Geometry, after: Geometry) -> Tensor:
    """Output weight [hidden, value heads x channels] -> [groups, heads, channels, hidden], the
    heads to choose among in each group."""
    groups, heads = 1, before.num_k_heads
    if after.num_k_heads == before.num_k_heads:
        groups, heads = before.num_k_heads, before.group
    return weight.mT.reshape(groups, heads, -1, len(weight))


def _value_heads(selected: Tensor, before: Geometry, after: Geometry) -> Tensor:
    """Numbers of the kept value heads [kept key heads, kept value heads of each], from the heads
    [groups, keep] that a method selected."""
    if after.num_k_heads == before.num_k_heads:
        return selected + before.group * torch.arange(len(selected)).unsqueeze(1)
    return before.group * selected.reshape(-1, 1) + torch.arange(before.group)
