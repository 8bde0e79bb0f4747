"""Checkpoint -> Plan: a method selects the channels or heads to keep, layer by layer."""

from typing import Any

import torch
from torch import Tensor

from ..artifacts.plan import Plan
from ..artifacts.statistics import Statistics, mix_statistics
from ..errors import StatetrimError
from ..geometry import Geometry
from ..methods.contract import Evidence, HeadEvidence, ValueEvidence
from ..options import takes_options
from ..progress import OnProgress, Progress, progress_reporter
from ..request import parse_request
from ..serving.target import Target, resolve_target
from ..storage.checkpoint import Checkpoint, require_prunable
from ..storage.models import ModelLike, as_checkpoint, load_if_path
from .choice import MethodChoice, layer_generator, plan_lineage
from .options import SelectOptions


@takes_options(SelectOptions)
def select(model: ModelLike, options: SelectOptions) -> Plan:
    """Choose what to keep, as `to` says: key x value channels per head ("64x64", or "64x100%" for
    all values), by layer ("0=64x64,others=32x32"), at most "12MiB" per sequence, or whole value
    heads ("8heads"). Removing heads loses more than removing channels in every measurement, except
    where several value heads share a key head; it is for models whose channels cannot be removed.

    A method is a name, a Python file or a function. Several sources of `statistics` are weighted by
    their fraction of the tokens, or by `shares`, such as {"recall": 0.5}, where text takes the
    rest. `progress` counts layers.
    """
    if options.to is None:
        raise StatetrimError("say what to keep, such as --to 64x64 channels per head")
    model = require_prunable(as_checkpoint(model))
    target = resolve_target(model, parse_request(options.to))
    with progress_reporter(options.progress, "selecting") as on_progress:
        return select_for_target(model, target, options, on_progress)


def select_for_target(
    model: Checkpoint, target: Target, options: SelectOptions, progress: OnProgress
) -> Plan:
    """Select what `target` keeps, whatever `options.to` says; `progress` counts layers.

    Raises StatetrimError if a method that is used does not fit its options or the statistics, or
    for shares without statistics.
    """
    statistics, seed = None, options.seed
    if options.statistics is not None:
        stored = load_if_path(Statistics.load, options.statistics)
        statistics = mix_statistics(stored, options.shares)
    elif options.shares:
        raise StatetrimError("shares are of the sources of statistics; give statistics as well")
    geometry, after = model.geometry, target.after
    if target.removes_heads:
        head_choice = MethodChoice(model, "head", options.head_method, {}, statistics)
        return choose_heads(model, target, head_choice, seed, statistics, progress)
    key_choice = value_choice = None
    if target.removes_keys:
        key_choice = MethodChoice(
            model, "key", options.method, options.method_options or {}, statistics
        )
    if target.removes_values:
        value_choice = MethodChoice(
            model, "value", options.value_method, options.value_options or {}, statistics
        )
    kept, kept_values = {}, {}
    notes: dict[str, Any] = {}
    for number, layer in enumerate(geometry.layers, start=1):
        sums = statistics.layers[layer] if statistics else None
        kept[layer] = torch.arange(geometry.shapes[layer][0]).repeat(geometry.num_k_heads, 1)
        if key_choice:
            evidence = Evidence(*model.query_key_weights(layer), layer_generator(seed, layer), sums)
            kept[layer] = key_choice.select_layer(evidence, layer, after.shapes[layer][0])
            if evidence.notes:
                notes[str(layer)] = evidence.notes
        if value_choice:
            value_evidence = ValueEvidence(
                *model.value_output_weights(layer), layer_generator(seed, layer, "value"), sums
            )
            kept_values[layer] = value_choice.select_layer(
                value_evidence, layer, after.shapes[layer][1]
            )
            if value_evidence.notes:
                notes[f"{layer} values"] = value_evidence.notes
        progress(Progress(number, len(geometry.layers), "layers"))
    choices = [choice for choice in (key_choice, value_choice) if choice]
    return Plan(
        kept=kept,
        requested=_requested(target, after.head_k_dim) if key_choice else "all",
        method=key_choice.method.name if key_choice else "none",
        seed=seed,
        options=key_choice.all_options if key_choice else {},
        kept_values=kept_values or None,
        requested_values=_requested(target, after.head_v_dim) if value_choice else None,
        value_method=value_choice.method.name if value_choice else None,
        value_options=value_choice.all_options if value_choice else {},
        lineage=plan_lineage(model, statistics, choices),
        notes=notes,
    )


def _requested(target: Target, width: int) -> str:
    """What a plan says was asked for along one axis: its width, or the widths by layer."""
    return str(target) if target.after.widths else str(width)


def choose_heads(
    model: Checkpoint,
    target: Target,
    choice: MethodChoice,
    seed: int,
    statistics: Statistics | None,
    progress: OnProgress,
) -> Plan:
    """A plan that removes whole heads; kept heads keep all their channels.

    If all key heads are kept, each keeps some of its value heads; else some key heads are kept with
    all their value heads. A method sees groups of heads in both cases: one group per key head, or
    one group of all key heads.
    """
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
