"""Checkpoint -> Plan: methods select the heads and channels to keep, layer by layer.

A method, its options and its statistics are checked before it selects.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..artifacts.plan import AxisPlan, Plan
from ..artifacts.statistics import LayerStatistics, Statistics
from ..cut.geometry import Target
from ..cut.request import parse_request
from ..cut.rows import rows_of_heads
from ..cut.shape import Axis
from ..errors import StatetrimError, check_option_names
from ..methods import find_method, listed_methods, method_names, methods_by_axis
from ..methods.contract import Evidence, HeadEvidence, Method, Select, ValueEvidence
from ..options import takes_options
from ..progress import OnProgress, Progress, progress_reporter
from ..serving.target import resolve_target
from ..statistics.mixture import mix_statistics
from ..statistics.statistic import Statistic, check_sums
from ..storage.checkpoint import Checkpoint, require_prunable
from ..storage.models import ModelLike, as_checkpoint, load_if_path
from ..storage.quantized.siblings import small_tensor_digests
from ..version import __version__
from .options import SelectOptions

AnyEvidence = Evidence | ValueEvidence | HeadEvidence


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
    needed = {each.name: each for choice in choices.values() for each in choice.method.needs}
    if statistics is not None:
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
        axis: AxisPlan(
            kept[axis], choice.method.name, {**choice.method.options, **choice.options}, notes[axis]
        )
        for axis, choice in choices.items()
    }
    lineage = {
        "statetrim": __version__,
        "model_type": model.model_type,
        "source": model.digest,
        "small_tensors": small_tensor_digests(model),
        "statistics": dict(statistics.lineage) if statistics and needed else None,
    }
    return Plan(axes, options.seed, lineage)


def _evidence(
    axis: Axis,
    model: Checkpoint,
    target: Target,
    layer: int,
    seed: int,
    sums: LayerStatistics | None,
) -> AnyEvidence:
    """What a method sees of one layer to choose along `axis`, of all heads."""
    # Seeded by seed, layer and axis, so that the order of layers does not matter.
    name = f"{seed} {layer}{'' if axis == 'key' else axis}"
    number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little") >> 1
    generator = torch.Generator().manual_seed(number)
    if axis == "key":
        weights = model.query_key_weights(layer)
        return Evidence(*weights, generator=generator, statistics=sums)
    if axis == "value":
        weights = model.value_output_weights(layer)
        return ValueEvidence(*weights, generator=generator, statistics=sums)
    weight = model.output_weight(layer)  # [hidden, value heads x channels]
    groups, heads = 1, target.before.num_k_heads
    if _keeps_key_heads(target):
        groups, heads = target.before.num_k_heads, target.before.group
    by_group = weight.mT.reshape(groups, heads, -1, len(weight))
    return HeadEvidence(by_group, generator=generator, statistics=sums)


def _keeps_key_heads(target: Target) -> bool:
    """Whether each key head keeps some of its value heads; else some key heads are kept with all
    their value heads. A method sees groups of heads in both cases: one group per key head, or one
    group of all key heads."""
    return target.after.num_k_heads == target.before.num_k_heads


def _value_heads(selected: Tensor, target: Target) -> Tensor:
    """Numbers of the kept value heads [kept key heads, kept value heads of each], from the heads
    [groups, keep] that a method selected."""
    group = target.before.group
    if _keeps_key_heads(target):
        return selected + group * torch.arange(len(selected)).unsqueeze(1)
    return group * selected.reshape(-1, 1) + torch.arange(group)


def check_used(methods: "str | Select | Sequence[str | Select]", axes: Sequence[Axis]) -> None:
    """Raise StatetrimError if none of `methods` chooses along one of `axes`."""
    listed = listed_methods(methods)
    if not any(set(axes) & set(find_method(method).axes) for method in listed):
        names = ", ".join(find_method(method).name for method in listed)
        choices = ", ".join(method_names(axes[0]))
        raise StatetrimError(f"{names} does not choose {axes[0]}s; choose one of {choices}")


def choose_methods(
    model: Checkpoint, axes: Sequence[Axis], options: SelectOptions, statistics: Statistics | None
) -> dict[Axis, "MethodChoice"]:
    """The methods that choose along `axes`, each with the options that it has."""
    by_axis = methods_by_axis(listed_methods(options.method))
    method_options = options.method_options or {}
    methods = {axis: find_method(by_axis[axis]) for axis in axes}
    names = [name for method in methods.values() for name in method.options]
    label = " and ".join(f"method {method.name!r}" for method in methods.values())
    check_option_names(label, method_options, names)
    choices = {}
    for axis, method in methods.items():
        _check_statistics(method, statistics, model)
        own = {name: x for name, x in method_options.items() if name in method.options}
        choices[axis] = MethodChoice(method, own)
    return choices


@dataclass(frozen=True)
class MethodChoice:
    """A method with the options that are given to it."""

    method: Method
    options: Mapping[str, Any]

    def select_layer(
        self, evidence: AnyEvidence, keep: int, of_heads: Tensor | None = None
    ) -> Tensor:
        """What one layer keeps, int64: channels [heads, keep], or heads [groups, keep], ascending
        in each; of channels, those of the heads `of_heads` [n] (None: all). Refuses anything else.
        """
        if of_heads is not None:
            evidence = _restricted(evidence, of_heads, self.method.needs)
        name, (heads, channels) = self.method.name, evidence.table_shape
        if keep == channels:  # in a plan by layer, this layer keeps all
            return torch.arange(channels).repeat(heads, 1)
        try:
            kept = self.method.select(evidence, keep, **self.options)
        except (ValueError, TypeError, RuntimeError) as error:
            # A wrong option, singular statistics.
            raise StatetrimError(f"method {name!r} cannot continue: {error}") from error
        if (
            not isinstance(kept, Tensor)
            or kept.dtype != torch.int64
            or tuple(kept.shape) != (heads, keep)
            or int(kept.min()) < 0
            or int(kept.max()) >= channels
            or bool((kept.diff(dim=1) <= 0).any())
        ):
            raise StatetrimError(
                f"method {name!r} must return int64 [{heads}, {keep}], ascending channels below "
                f"{channels} in every head"
            )
        return kept


def _restricted(evidence: AnyEvidence, heads: Tensor, needs: Sequence[Statistic]) -> AnyEvidence:
    """`evidence` of channels without those of other heads than `heads` [n]."""
    weights: dict[str, Any] = {name: x[heads] for name, x in evidence.weights.items()}
    axis: Axis = "key" if isinstance(evidence, Evidence) else "value"
    statistics = evidence.statistics
    if statistics is not None:
        by_head = [each.name for each in needs if each.has_heads(axis)]
        sums = {**statistics.sums, **{name: statistics[name][heads] for name in by_head}}
        statistics = replace(statistics, sums=sums)
    return replace(evidence, statistics=statistics, **weights)


def _check_statistics(method: Method, statistics: Statistics | None, model: Checkpoint) -> None:
    """Refuse statistics that lack what the method needs, or of another model or layers."""
    if not method.needs:
        return
    available = statistics.sum_names if statistics else set()
    lacking = [each.name for each in method.needs if each.name not in available]
    if statistics is None or lacking:
        raise StatetrimError(
            f"method {method.name!r} needs {' and '.join(lacking)} from calibration; "
            f"run: statetrim calibrate MODEL --for {method.name} --text SOURCE -o FILE "
            f"(l1 and readout_l1 need only the weights)"
        )
    if not model.has_digest(statistics.lineage.get("source")):
        raise StatetrimError("the statistics were made with another model; calibrate this one")
    if set(statistics.layers) != set(model.geometry.layers):
        raise StatetrimError("the statistics do not cover the model's linear-attention layers")
    layers = [layer for source in statistics.sources.values() for layer in source.values()]
    if not any(bool(layer[each.name].any()) for layer in layers for each in method.needs):
        raise StatetrimError("the statistics hold nothing but zeros; calibrate again")


def check_evidence(evidence: AnyEvidence, method: Method, model: Checkpoint, layer: int) -> None:
    """Raise StatetrimError if weights contain nan or infinity, or unless each needed sum exists, is
    finite and fits the model. Statistics may come from an untrusted file."""
    for name, weight in evidence.weights.items():
        if not bool(weight.isfinite().all()):
            raise StatetrimError(f"layer {layer} has {name.replace('_', ' ')}s that are not finite")
    check_sums(method.needs, evidence.statistics, model, layer)
