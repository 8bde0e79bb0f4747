"""A selection method with its options and statistics, checked before it selects."""

import hashlib
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from ..artifacts.statistics import Statistics
from ..errors import StatetrimError, check_option_names
from ..methods import find_method, method_names
from ..methods.contract import Evidence, HeadEvidence, Method, Select, Selectable, ValueEvidence
from ..storage.checkpoint import Checkpoint
from ..storage.quantized.siblings import small_tensor_digests
from ..version import __version__

AnyEvidence = Evidence | ValueEvidence | HeadEvidence
_DESCRIPTIONS: dict[Selectable, str] = {
    "key": "key channels", "value": "value channels", "head": "heads",
}  # fmt: skip


class MethodChoice:
    """A method that selects key channels, value channels or heads, with its options.

    Raises StatetrimError if it selects something else, does not have an option, or needs statistics
    that are absent or of another model.
    """

    def __init__(
        self,
        model: Checkpoint,
        selectable: Selectable,
        method: str | Select,
        options: Mapping[str, Any],
        statistics: Statistics | None,
    ) -> None:
        self.method, self.options = find_method(method), dict(options)
        if selectable not in self.method.axes:
            raise StatetrimError(
                f"method {self.method.name!r} does not choose {_DESCRIPTIONS[selectable]}; choose "
                f"one of {', '.join(method_names(selectable))}"
            )
        check_option_names(f"method {self.method.name!r}", self.options, self.method.options)
        _check_statistics(self.method, statistics, model)

    @property
    def all_options(self) -> dict[str, Any]:
        """The options of the method, with defaults for those not given."""
        return dict(self.method.options) | self.options

    def select_layer(self, evidence: AnyEvidence, layer: int, keep: int) -> Tensor:
        """What one layer keeps, int64: channels [heads, keep], or heads [groups, keep], ascending
        in each.

        If `keep` is all of them the method is not called. Raises StatetrimError if weights or sums
        are not usable, or if the method fails or returns anything else.
        """
        _check_evidence(evidence, self.method, layer)
        name, (heads, channels) = self.method.name, evidence.shape
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


def plan_lineage(
    model: Checkpoint, statistics: Statistics | None, choices: Sequence[MethodChoice]
) -> dict[str, Any]:
    """The lineage of a plan: version, model type, digests of the model, and the lineage of the
    statistics, None if no method needs them."""
    needs_statistics = statistics is not None and any(choice.method.needs for choice in choices)
    return {
        "statetrim": __version__,
        "model_type": model.config.get("model_type"),
        "source": model.digest,
        "small_tensors": small_tensor_digests(model),
        "statistics": dict(statistics.lineage) if statistics and needs_statistics else None,
    }


def layer_generator(seed: int, layer: int, axis: str = "") -> torch.Generator:
    """A generator seeded by seed, layer and axis, so that the order of layers does not matter."""
    digest = hashlib.sha256(f"{seed} {layer}{axis}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def _check_statistics(method: Method, statistics: Statistics | None, model: Checkpoint) -> None:
    """Raise StatetrimError if the method needs sums that are absent, or if the statistics are of
    another model or of other layers. A method that needs none is not checked."""
    if not method.needs:
        return
    available = statistics.sum_names if statistics else set()
    lacking = [name for name in method.needs if name not in available]
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


def _check_evidence(evidence: AnyEvidence, method: Method, layer: int) -> None:
    """Raise StatetrimError if weights contain nan or infinity, or unless each needed sum exists, is
    finite and fits the weights. Statistics may come from an untrusted file."""
    heads, channels = evidence.shape
    shapes: dict[str, tuple[int, ...] | None] = {
        "output_square": None, "state_ranks": None, "state_read": (heads, channels)
    }  # fmt: skip
    if isinstance(evidence, Evidence):
        kind, weights = "query or key", [evidence.query_weight, evidence.key_weight]
        shapes |= {
            "input_square": (evidence.query_weight.shape[-1],),
            "query_gradient": tuple(evidence.query_weight.shape),
            "key_gradient": tuple(evidence.key_weight.shape),
        }
    elif isinstance(evidence, HeadEvidence):
        kind, weights = "output", [evidence.output_weight]
        *columns, hidden = evidence.output_weight.shape
        n = prod(columns)
        shapes |= {"readout_moment": (n, n), "target_moment": (hidden, n), "target_square": (1,)}
    else:
        kind, weights = "value or output", [evidence.value_weight, evidence.output_weight]
    if not all(bool(weight.isfinite().all()) for weight in weights):
        raise StatetrimError(f"layer {layer} has {kind} weights that are not finite")
    for name in method.needs:
        expected = shapes.get(name, (heads, channels, channels))
        value = getattr(evidence.statistics, name)
        has_shape = value is not None and (expected is None or tuple(value.shape) == expected)
        if not has_shape or not bool(value.isfinite().all()):
            raise StatetrimError(
                f"the statistics of layer {layer} have no usable {name!r}; calibrate again"
            )
