"""Checkpoint + Plans + text -> Sensitivity: the loss when a plan prunes a single layer.

No cut is written: the channels that a plan prunes are masked in the kernels of one layer.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from ..artifacts.plan import Plan
from ..artifacts.record import as_fields, parse_record
from ..artifacts.sensitivity import CutSamples, LayerCut, Sensitivity
from ..cut.shape import ChannelAxis, Kept
from ..errors import StatetrimError
from ..maths.units import MIB
from ..progress import OnProgress, counter, ignore_progress
from ..runtime.corpus import Corpus, as_corpus
from ..runtime.kernel_hooks import hook_kernels
from ..runtime.live import LiveModel
from ..runtime.loading import load_live
from ..runtime.placement import Placement
from ..storage.checkpoint import Checkpoint, require_prunable
from ..storage.json_file import read_json, write_json
from ..storage.output import run_and_save
from ..version import __version__
from .experiment import Experiment

LENGTH = 256  # tokens per window; slightly more than the longest recall sequence
_MAX_BYTES = 256 * MIB
_PARTIAL_FILE = "so-far.json"


@dataclass(frozen=True, eq=False)
class _Variant:
    """One layer, pruned along one axis."""

    layer: int
    axis: ChannelAxis
    kept: Tensor  # [heads, keep]

    @property
    def identity(self) -> tuple[int, ChannelAxis, int]:
        """Layer, axis and kept width, which distinguish variants."""
        return self.layer, self.axis, int(self.kept.shape[1])


def sensitivity(
    model: Checkpoint,
    plans: Sequence[Plan],
    text: str | Path | Corpus,
    *,
    windows: int = 64,
    length: int = LENGTH,
    rows: int = 32,
    skip: int = 0,
    batch_size: int = 8,
    placement: Placement | None = None,
    out: str | Path | None = None,
    progress: OnProgress = ignore_progress,
) -> Sensitivity:
    """Measure the loss of pruning each layer alone, for each of `plans` and each axis it prunes.

    An evaluation reads `windows` windows of `length` tokens of `text`, after `skip` tokens, and
    `rows` sequences of each recall load. There is one for the original and one per layer, plan and
    axis. With weights on disk, each evaluation reads them once.
    With `out` the result is written there, and intermediate results to `OUT.partial`, from which
    the same call resumes after an interruption; StatetrimError is raised if `out` exists.
    """
    variants = list(_variants(require_prunable(model), plans))
    tables = [[*variant.identity, variant.kept.tolist()] for variant in variants]
    data = as_corpus(text, model).read(tokens=windows * length, length=length, skip=skip)
    lineage = {
        "statetrim": __version__,
        "source": model.digest,
        "weights": model.digest,
        "dtype": (placement or Placement()).dtype_text,
        "data": data.lineage,
        "rows": rows,
        "plans": hashlib.sha256(json.dumps(tables).encode()).hexdigest(),
    }
    record = {"format": "statetrim sensitivity job", **lineage}

    def measure(directory: Path | None) -> Sensitivity:
        live = load_live(model, placement)
        experiment = Experiment(live, data, rows, batch_size)
        return _measure(experiment, variants, directory, lineage, progress)

    return run_and_save(out, record, measure, Sensitivity.load, temporary_patterns=[_PARTIAL_FILE])


def _measure(
    experiment: Experiment,
    variants: Sequence[_Variant],
    directory: Path | None,
    lineage: Mapping[str, Any],
    progress: OnProgress,
) -> Sensitivity:
    """Measure what `directory` does not hold yet, saving each result there."""
    partial = _PartialResult.load(directory)
    advance = counter(progress, len(variants) + 1, "settings")
    original = partial.original = partial.original or experiment.samples()
    partial.save(directory)
    advance(1)
    for number, variant in enumerate(variants):
        if number == len(partial.cuts):
            samples = experiment.samples(_masked(experiment.live, variant))
            partial.cuts.append(LayerCut(*variant.identity, samples))
            partial.save(directory)
        advance(1)
    geometry = experiment.live.checkpoint.geometry
    widths: dict[ChannelAxis, int] = {
        "key": geometry.width("key"),
        "value": geometry.width("value"),
    }
    return Sensitivity(original, partial.cuts, widths, dict(lineage))


def _variants(model: Checkpoint, plans: Sequence[Plan]) -> Iterator[_Variant]:
    """A variant for every layer and axis that a plan prunes; refuses none, and equal ones."""
    identities: set[tuple[int, ChannelAxis, int]] = set()
    for plan in plans:
        source = plan.lineage.get("source")
        if source is not None and not model.has_digest(source):
            raise StatetrimError("a plan was made for another model; select channels of this one")
        for axis, axis_plan in plan.axes.items():
            if axis == "head":
                raise StatetrimError("a plan removes heads; only channels are cut layer by layer")
            for layer, kept in axis_plan.kept.items():
                variant = _Variant(layer, axis, kept)
                if kept.shape[1] == model.geometry.for_layer(layer).width(axis):
                    continue
                if variant.identity in identities:
                    raise StatetrimError(
                        f"two plans keep {kept.shape[1]} {axis} channels; give each width once"
                    )
                identities.add(variant.identity)
                yield variant
    if not identities:
        raise StatetrimError("no plan cuts anything, so there is nothing to compare")


def _masked(live: LiveModel, variant: _Variant) -> AbstractContextManager[None]:
    """Within, the variant's layer is cut."""
    kept: Mapping[int, Kept] = {variant.layer: {variant.axis: variant.kept}}
    return hook_kernels(live, lambda call: None, kept=kept, layers=[variant.layer])


@dataclass
class _PartialResult:
    """Results so far, saved in a directory so that a killed run resumes; None: not saved."""

    original: CutSamples | None = None
    cuts: list[LayerCut] = field(default_factory=list)

    @classmethod
    def load(cls, directory: Path | None) -> "_PartialResult":
        if directory is None or not (directory / _PARTIAL_FILE).exists():
            return cls()
        path = directory / _PARTIAL_FILE
        return parse_record(read_json(path, _MAX_BYTES), cls, path)

    def save(self, directory: Path | None) -> None:
        if directory is not None:
            write_json(directory / _PARTIAL_FILE, as_fields(self), indent=None)
