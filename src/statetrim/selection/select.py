"""Checkpoint -> Plan: a method selects the channels or heads to keep, layer by layer."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..artifacts.mixture import mix_statistics
from ..artifacts.plan import Plan
from ..artifacts.statistics import Statistics
from ..errors import StatetrimError
from ..methods.contract import Evidence, Select, ValueEvidence
from ..options import takes_options
from ..progress import OnProgress, Progress, progress_reporter
from ..request import parse_request
from ..serving.target import Target, resolve_target
from ..storage.checkpoint import Checkpoint, require_prunable
from ..storage.models import ModelLike, as_checkpoint, load_if_path
from .choice import MethodChoice, layer_generator, plan_lineage
from .heads import choose_heads
from .options import SelectOptions


@takes_options(SelectOptions)
def select(model: ModelLike, options: SelectOptions) -> Plan:
    """Choose what to keep, as `to` says: key x value channels per head ("64x64", or "64x100%" for
    all values), by layer ("0=64x64,others=32x32"), at most "12MiB" per sequence, or whole value
    heads ("8heads"). Removing heads loses more than removing channels in every measurement, except
    where several value heads share a key head; it is for models whose channels cannot be removed.

    `method` is a name, a Python file or a function, with its own `method_options`, and selects key
    channels; `value_method`, with `value_options`, selects value channels, and `head_method` heads.
    `statistics` come from `calibrate`, or from its file, for methods that need them. Several
    sources are weighted by their fraction of the tokens, or by `shares`, such as {"recall": 0.5},
    where text takes the rest. `progress` counts layers.
    """
    if options.to is None:
        raise StatetrimError("say what to keep, such as --to 64x64 channels per head")
    model = require_prunable(as_checkpoint(model))
    target = resolve_target(model, parse_request(options.to))
    with progress_reporter(options.progress, "selecting") as on_progress:
        return select_for_target(
            model,
            target,
            options.method,
            options.method_options or {},
            value_method=options.value_method,
            value_options=options.value_options or {},
            head_method=options.head_method,
            seed=options.seed,
            statistics=_load_mixture(options.statistics, options.shares),
            progress=on_progress,
        )


def _load_mixture(
    statistics: Statistics | str | Path | None, shares: Mapping[str, float] | None
) -> Statistics | None:
    """The statistics, loaded if they are a path, with their sources weighted by `shares` and added;
    None without statistics. Raises StatetrimError for `shares` without statistics."""
    if statistics is not None:
        return mix_statistics(load_if_path(Statistics.load, statistics), shares)
    if shares:
        raise StatetrimError("shares are of the sources of statistics; give statistics as well")
    return None


def select_for_target(
    model: Checkpoint,
    target: Target,
    method: str | Select,
    options: Mapping[str, Any],
    *,
    value_method: str | Select,
    value_options: Mapping[str, Any],
    head_method: str | Select,
    seed: int,
    statistics: Statistics | None,
    progress: OnProgress,
) -> Plan:
    """Select what `target` keeps; writes nothing.

    `options` are those of `method`, which selects key channels. Sources of `statistics` that are
    still separate are weighted by their default shares. Raises StatetrimError if a method that is
    used does not fit its options or the statistics; `progress` counts layers.
    """
    statistics = None if statistics is None else mix_statistics(statistics)
    geometry, after = model.geometry, target.after
    if target.removes_heads:
        head_choice = MethodChoice(model, "head", head_method, {}, statistics)
        return choose_heads(model, target, head_choice, seed, statistics, progress)
    key_choice = value_choice = None
    if target.removes_keys:
        key_choice = MethodChoice(model, "key", method, options, statistics)
    if target.removes_values:
        value_choice = MethodChoice(model, "value", value_method, value_options, statistics)
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
