"""Which whole heads stay, layer by layer.

Where all key heads stay, a choice is made among the value heads of each; else among the key heads,
each with all its value heads. A method sees the same either way: groups of heads, so many of each.
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
    """The plan of a cut that removes heads; those that stay keep all their channels."""
    before, after = model.geometry, target.after
    kept: dict[int, Tensor] = {}
    notes: dict[str, Any] = {}
    for number, layer in enumerate(before.layers, start=1):
        sums = statistics.layers[layer] if statistics else None
        grouped_weight = _group_heads(model.output_weight(layer), before, after)
        evidence = HeadEvidence(grouped_weight, layer_generator(seed, layer, "head"), sums)
        keep = after.group if after.num_k_heads == before.num_k_heads else after.num_k_heads
        kept[layer] = _value_heads(choice.select_layer(evidence, layer, keep), before, after)
        notes |= {f"{layer} heads": evidence.notes} if evidence.notes else {}
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
        requested_heads=str(target.keep_heads),
        head_method=choice.method.name,
        lineage=plan_lineage(model, statistics, [choice]),
        notes=notes,
    )


def _group_heads(weight: Tensor, before: Geometry, after: Geometry) -> Tensor:
    """weight [hidden, value heads x channels] -> [groups, heads of each, channels, hidden]."""
    groups, heads = 1, before.num_k_heads
    if after.num_k_heads == before.num_k_heads:
        groups, heads = before.num_k_heads, before.group
    return weight.mT.reshape(groups, heads, -1, len(weight))


def _value_heads(selected: Tensor, before: Geometry, after: Geometry) -> Tensor:
    """What a method chose, [groups, keep], as value heads [key heads, value heads of each]."""
    if after.num_k_heads == before.num_k_heads:
        return selected + before.group * torch.arange(len(selected)).unsqueeze(1)
    return before.group * selected.reshape(-1, 1) + torch.arange(before.group)
