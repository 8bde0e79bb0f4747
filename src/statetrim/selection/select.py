"""Checkpoint -> Plan: methods select the heads and channels to keep, layer by layer."""

from typing import Any

import torch
from torch import Tensor

from ..artifacts.plan import AxisPlan, Plan
from ..artifacts.statistics import LayerStatistics, Statistics
from ..cut.geometry import Target
from ..cut.request import parse_request
from ..cut.rows import rows_of_heads
from ..cut.shape import Axis
from ..errors import StatetrimError
from ..methods.contract import Evidence, HeadEvidence, ValueEvidence
from ..options import takes_options
from ..progress import OnProgress, Progress, progress_reporter
from ..serving.target import resolve_target
from ..statistics.mixture import mix_statistics
from ..storage.checkpoint import Checkpoint, require_prunable
from ..storage.models import ModelLike, as_checkpoint, load_if_path
from .choice import (
    AnyEvidence,
    check_evidence,
    check_used,
    choose_methods,
    layer_generator,
    plan_lineage,
)
from .options import SelectOptions


@takes_options(SelectOptions)
def select(model: ModelLike, options: SelectOptions) -> Plan:
    """Choose what to keep, as `to` says: key x value channels per head ("64x64", or "64x100%" for
    all values), by layer ("0=64x64,others=32x32"), or whole value
    heads ("8heads", or "8heads:64x64" channels of them). Removing heads loses more than removing
    channels in every measurement, except where several value heads share a key head; it is for
    models whose channels cannot be removed.

    A method is a name, a Python file or a function; it chooses along every axis that it declares,
    and the default methods choose along the others. Several sources of `statistics` are weighted by
    their fraction of the tokens. `progress` counts layers.
    """
    if options.to is None:
        raise StatetrimError("say what to keep, such as --to 64x64 channels per head")
    model = require_prunable(as_checkpoint(model))
    target = resolve_target(model, parse_request(options.to))
    check_used(options.method, target.axes)
    with progress_reporter(options.progress, "selecting") as on_progress:
        return select_for_target(model, target, options, on_progress)


def select_for_target(
    model: Checkpoint, target: Target, options: SelectOptions, progress: OnProgress
) -> Plan:
    """Select what `target` keeps, whatever `options.to` says: first heads, then the channels of
    those that stay. `progress` counts layers."""
    statistics = None
    if options.statistics is not None:
        statistics = load_if_path(Statistics.load, options.statistics)
    choices = choose_methods(model, target.axes, options, statistics)
    if statistics is not None:
        needed = {each.name: each for choice in choices.values() for each in choice.method.needs}
        statistics = mix_statistics(statistics, needed.values())
    kept: dict[Axis, dict[int, Tensor]] = {axis: {} for axis in choices}
    notes: dict[Axis, dict[int, Any]] = {axis: {} for axis in choices}
    for number, layer in enumerate(model.geometry.layers, start=1):
        sums = statistics.layers[layer] if statistics else None
        for axis, choice in choices.items():
            evidence = _evidence(axis, model, target, layer, options.seed, sums)
            check_evidence(evidence, choice.method, model, layer)
            if axis == "head":
                after = target.after
                keep = after.group if _keeps_key_heads(target) else after.num_k_heads
                selected = choice.select_layer(evidence, keep)
                kept[axis][layer] = _value_heads(selected, target)
            else:
                keep, heads = target.after.for_layer(layer).width(axis), None
                if "head" in kept:
                    heads = rows_of_heads(axis, kept["head"][layer], model.geometry)
                kept[axis][layer] = choice.select_layer(evidence, keep, heads)
            if evidence.notes:
                notes[axis][layer] = evidence.notes
        progress(Progress(number, len(model.geometry.layers), "layers"))
    axes = {
        axis: AxisPlan(kept[axis], choice.method.name, choice.all_options, notes[axis])
        for axis, choice in choices.items()
    }
    return Plan(axes, options.seed, plan_lineage(model, statistics, list(choices.values())))


def _evidence(
    axis: Axis,
    model: Checkpoint,
    target: Target,
    layer: int,
    seed: int,
    sums: LayerStatistics | None,
) -> AnyEvidence:
    """What a method sees of one layer to choose along `axis`, of all heads."""
    generator = layer_generator(seed, layer, "" if axis == "key" else axis)
    if axis == "key":
        weights = model.query_key_weights(layer)
        return Evidence(*weights, generator=generator, statistics=sums)
    if axis == "value":
        weights = model.value_output_weights(layer)
        return ValueEvidence(*weights, generator=generator, statistics=sums)
    groups = _reshape_by_group(model.output_weight(layer), target)
    return HeadEvidence(groups, generator=generator, statistics=sums)


def _keeps_key_heads(target: Target) -> bool:
    """Whether each key head keeps some of its value heads; else some key heads are kept with all
    their value heads. A method sees groups of heads in both cases: one group per key head, or one
    group of all key heads."""
    return target.after.num_k_heads == target.before.num_k_heads


def _reshape_by_group(weight: Tensor, target: Target) -> Tensor:
    """Output weight [hidden, value heads x channels] -> [groups, heads, channels, hidden], the
    heads to choose among in each group."""
    groups, heads = 1, target.before.num_k_heads
    if _keeps_key_heads(target):
        groups, heads = target.before.num_k_heads, target.before.group
    return weight.mT.reshape(groups, heads, -1, len(weight))


def _value_heads(selected: Tensor, target: Target) -> Tensor:
    """Numbers of the kept value heads [kept key heads, kept value heads of each], from the heads
    [groups, keep] that a method selected."""
    group = target.before.group
    if _keeps_key_heads(target):
        return selected + group * torch.arange(len(selected)).unsqueeze(1)
    return group * selected.reshape(-1, 1) + torch.arange(group)
