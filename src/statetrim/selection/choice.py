"""A selection method with its options and statistics, checked before it selects."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..artifacts.statistics import Statistics
from ..cut.shape import Axis
from ..errors import StatetrimError, check_option_names
from ..methods import find_method, listed_methods, method_names, methods_by_axis
from ..methods.contract import Evidence, HeadEvidence, Method, Select, ValueEvidence
from ..statistics.statistic import Statistic, check_sums
from ..storage.checkpoint import Checkpoint
from ..storage.quantized.siblings import small_tensor_digests
from ..version import __version__
from .options import SelectOptions

AnyEvidence = Evidence | ValueEvidence | HeadEvidence


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

    @property
    def all_options(self) -> dict[str, Any]:
        """The options of the method, with defaults for those not given."""
        return {**self.method.options, **self.options}

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


def plan_lineage(
    model: Checkpoint, statistics: Statistics | None, choices: Sequence[MethodChoice]
) -> dict[str, Any]:
    """Version, model type, digests of the model, and the lineage of statistics that are needed."""
    needs_statistics = statistics is not None and any(choice.method.needs for choice in choices)
    return {
        "statetrim": __version__,
        "model_type": model.model_type,
        "source": model.digest,
        "small_tensors": small_tensor_digests(model),
        "statistics": dict(statistics.lineage) if statistics and needs_statistics else None,
    }


def layer_generator(seed: int, layer: int, axis: str = "") -> torch.Generator:
    """A generator seeded by seed, layer and axis, so that the order of layers does not matter."""
    digest = hashlib.sha256(f"{seed} {layer}{axis}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


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
