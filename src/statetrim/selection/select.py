"""Checkpoint -> Plan: ask a method, layer by layer, which channels stay."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..artifacts.mixture import mixed
from ..artifacts.plan import Plan
from ..artifacts.statistics import Statistics
from ..defaults import KEY_METHOD, VALUE_METHOD
from ..errors import StatetrimError, refuse_unknown
from ..geometry import Axis, Geometry
from ..maths.units import Amount
from ..methods import find_method, method_names
from ..methods.contract import Evidence, Method, Select, ValueEvidence
from ..progress import OnProgress, Progress, ShowProgress, showing
from ..serving.target import Target, target_of
from ..serving.widths import Widths
from ..storage.checkpoint import Checkpoint, with_weights
from ..storage.models import ModelLike, loaded, opened
from ..version import __version__


def select(
    model: ModelLike,
    method: str | Select = KEY_METHOD,
    keep: Amount | None = None,
    *,
    keep_values: Amount | None = None,
    square: Amount | None = None,
    widths: Widths | None = None,
    value_method: str | Select = VALUE_METHOD,
    value_options: Mapping[str, Any] | None = None,
    seed: int = 0,
    statistics: Statistics | str | Path | None = None,
    shares: Mapping[str, float] | None = None,
    progress: ShowProgress = True,
    **options: Any,
) -> Plan:
    """Choose the channels that stay: `keep` per key head, `keep_values` per value head, or `square`
    of both, each a number or a fraction; the axis that is left out keeps all it has. `widths` says
    it layer by layer instead ("0=64x64,others=32x32"), for an uneven cut.

    `method` is a name, a Python file or a function, and `options` are its own; `value_method` and
    `value_options` are the same for the value axis. `statistics` come from `calibrate`, or from
    its file, for methods that need them; of several sources, each counts its part of the tokens,
    or its part in `shares`, such as {"recall": 0.5}, of which text takes the rest. `progress` is
    told of the layers that are done.
    """
    model = with_weights(opened(model))
    with showing(progress, "selecting") as report:
        return choose(
            model,
            target_of(model, keep, keep_values, square, widths),
            method,
            options,
            value_method=value_method,
            value_options=value_options or {},
            seed=seed,
            statistics=_mixture(statistics, shares),
            progress=report,
        )


def _mixture(
    statistics: Statistics | str | Path | None, shares: Mapping[str, float] | None
) -> Statistics | None:
    if statistics is not None:
        return mixed(loaded(Statistics.load, statistics), shares)
    if shares:
        raise StatetrimError("shares are of the sources of statistics; give statistics as well")
    return None


def choose(
    model: Checkpoint,
    target: Target,
    method: str | Select,
    options: Mapping[str, Any],
    *,
    value_method: str | Select,
    value_options: Mapping[str, Any],
    seed: int,
    statistics: Statistics | None,
    progress: OnProgress,
) -> Plan:
    """The same, for a state that is settled already, by the default shares of the sources."""
    statistics = None if statistics is None else mixed(statistics)
    geometry, after = model.geometry, target.after
    keys = values = None
    if target.keep is not None:
        keys = _Choice(model, "key", method, options, after, statistics)
    if target.keep_values is not None:
        values = _Choice(model, "value", value_method, value_options, after, statistics)
    kept, kept_values = {}, {}
    notes: dict[str, Any] = {}
    for number, layer in enumerate(geometry.layers, start=1):
        sums = statistics.layers[layer] if statistics else None
        kept[layer] = torch.arange(geometry.shapes[layer][0]).repeat(geometry.num_k_heads, 1)
        if keys:
            evidence = Evidence(*model.projections(layer), _generator(seed, layer), sums)
            kept[layer] = keys.channels(evidence, layer)
            notes |= {str(layer): evidence.notes} if evidence.notes else {}
        if values:
            weights, generator = model.values(layer), _generator(seed, layer, "value")
            value_evidence = ValueEvidence(*weights, generator, sums)
            kept_values[layer] = values.channels(value_evidence, layer)
            if value_evidence.notes:
                notes[f"{layer} values"] = value_evidence.notes
        progress(Progress(number, len(geometry.layers), "layers"))
    used = [choice.method for choice in (keys, values) if choice]
    return Plan(
        kept=kept,
        requested=str(target.keep if keys else "all"),
        method=keys.method.name if keys else "none",
        seed=seed,
        options=keys.all_options if keys else {},
        kept_values=kept_values or None,
        requested_values=str(target.keep_values) if values else None,
        value_method=values.method.name if values else None,
        value_options=values.all_options if values else {},
        lineage={
            "statetrim": __version__,
            "model_type": model.config.get("model_type"),
            "source": model.digest,
            "statistics": dict(statistics.lineage)
            if statistics and any(method.needs for method in used)
            else None,
        },
        notes=notes,
    )


class _Choice:
    """A method, checked against axis, options and statistics, and the state that it leaves."""

    def __init__(
        self,
        model: Checkpoint,
        axis: Axis,
        method: str | Select,
        options: Mapping[str, Any],
        after: Geometry,
        statistics: Statistics | None,
    ) -> None:
        self.method, self.options = find_method(method), dict(options)
        self.axis, self.after = axis, after
        if axis not in self.method.axes:
            raise StatetrimError(
                f"method {self.method.name!r} does not choose {axis} channels; choose one of "
                f"{', '.join(method_names(axis))}"
            )
        _check_options(self.method, self.options)
        _check_statistics(self.method, statistics, model)

    @property
    def all_options(self) -> dict[str, Any]:
        return dict(self.method.options) | self.options

    def channels(self, evidence: Evidence | ValueEvidence, layer: int) -> Tensor:
        """The kept channels [heads, keep] of one layer."""
        _check_finite(evidence, layer)
        _check_sums(evidence, self.method, layer)
        keep = self.after.of(layer).channels(self.axis)
        heads, channels = evidence.shape
        if keep == channels:  # of an uneven plan: this layer stays whole
            return torch.arange(channels).repeat(heads, 1)
        return _select_layer(evidence, self.method, keep, self.options)


def _select_layer(
    evidence: Evidence | ValueEvidence, method: Method, keep: int, options: dict[str, Any]
) -> Tensor:
    try:
        kept = method.select(evidence, keep, **options)
    except (ValueError, TypeError) as error:  # an option of the wrong kind, or numbers beyond use
        raise StatetrimError(f"method {method.name!r} cannot go on: {error}") from error
    heads, channels = evidence.shape
    if (
        not isinstance(kept, Tensor)
        or kept.dtype != torch.int64
        or tuple(kept.shape) != (heads, keep)
        or int(kept.min()) < 0
        or int(kept.max()) >= channels
        or bool((kept.diff(dim=1) <= 0).any())
    ):
        raise StatetrimError(
            f"method {method.name!r} must return int64 [{heads}, {keep}], ascending channels below "
            f"{channels} in every head"
        )
    return kept


def _generator(seed: int, layer: int, axis: str = "") -> torch.Generator:
    """Seeded by model seed, layer and axis, so that layers may be visited in any order."""
    digest = hashlib.sha256(f"{seed} {layer}{axis}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def _check_statistics(method: Method, statistics: Statistics | None, model: Checkpoint) -> None:
    if not method.needs:
        return
    have = statistics.parts if statistics else set()
    lacking = [part for part in method.needs if part not in have]
    if statistics is None or lacking:
        raise StatetrimError(
            f"method {method.name!r} needs {' and '.join(lacking)} from calibration; "
            f"run: statetrim calibrate MODEL --for {method.name} --text SOURCE -o FILE "
            f"(l1 and readout_l1 need only the weights)"
        )
    if not model.is_source(statistics.lineage.get("source")):
        raise StatetrimError("the statistics were made with another model; calibrate this one")
    if set(statistics.layers) != set(model.geometry.layers):
        raise StatetrimError("the statistics do not cover the model's linear-attention layers")


def _check_finite(evidence: Evidence | ValueEvidence, layer: int) -> None:
    if isinstance(evidence, Evidence):
        kind, weights = "query or key", (evidence.query_weight, evidence.key_weight)
    else:
        kind, weights = "value or output", (evidence.value_weight, evidence.output_weight)
    if not all(bool(weight.isfinite().all()) for weight in weights):
        raise StatetrimError(f"layer {layer} has {kind} weights that are not finite")


def _check_sums(evidence: Evidence | ValueEvidence, method: Method, layer: int) -> None:
    """Statistics may be untrusted: each sum must be there, finite, of the weights' shape."""
    heads, channels = evidence.shape
    shapes: dict[str, tuple[int, ...] | None] = {"output_square": None}
    if isinstance(evidence, Evidence):
        shapes |= {
            "input_square": (evidence.query_weight.shape[-1],),
            "query_gradient": tuple(evidence.query_weight.shape),
            "key_gradient": tuple(evidence.key_weight.shape),
        }
    for part in method.needs:
        expected = shapes.get(part, (heads, channels, channels))
        value = getattr(evidence.statistics, part)
        fits = value is not None and (expected is None or tuple(value.shape) == expected)
        if not fits or not bool(value.isfinite().all()):
            raise StatetrimError(
                f"the statistics of layer {layer} have no usable {part!r}; calibrate again"
            )


def _check_options(method: Method, options: dict[str, Any]) -> None:
    refuse_unknown(f"method {method.name!r}", options, method.options)
