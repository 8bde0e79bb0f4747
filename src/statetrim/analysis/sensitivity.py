"""Checkpoint + Plans + text -> Sensitivity: the loss when a plan prunes a single layer.

No cut is written: the channels that a plan prunes are masked in the kernels of one layer. That
layer gets the same input as in the original, so its own error needs no second model.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
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
from ..runtime.sequential import mixer_calls
from ..storage.checkpoint import Checkpoint, require_prunable
from ..storage.json_file import read_json, write_json
from ..storage.output import run_and_save
from ..storage.text import Sequences
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
    axis; the errors of the layers' outputs take about two more. With weights on disk, each
    evaluation reads them once.
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
        experiment = _Cuts(live, data, rows, batch_size)
        return _measure(experiment, variants, directory, lineage, progress)

    return run_and_save(out, record, measure, Sensitivity.load, temporary_patterns=[_PARTIAL_FILE])


def _measure(
    experiment: "_Cuts",
    variants: Sequence[_Variant],
    directory: Path | None,
    lineage: Mapping[str, Any],
    progress: OnProgress,
) -> Sensitivity:
    """Measure what `directory` does not hold yet, saving each result there."""
    partial = _PartialResult.load(directory)
    advance = counter(progress, len(variants) + 2, "settings")
    original = partial.original = partial.original or experiment.samples()
    advance(1)
    partial.errors = partial.errors or experiment.errors(variants)
    partial.save(directory)
    advance(1)
    for number, variant in enumerate(variants):
        if number == len(partial.cuts):
            samples = experiment.samples(experiment.masked(variant))
            partial.cuts.append(LayerCut(*variant.identity, samples, partial.errors[number]))
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


class _Cuts(Experiment):
    """Every variant on the sequences of an experiment, by masking it."""

    def __init__(self, live: LiveModel, data: Sequences, rows: int, batch_size: int) -> None:
        super().__init__(live, data, rows, batch_size)
        vocabulary = int(live.lm_head.weight.shape[0])
        generator = torch.Generator().manual_seed(0)
        self.random = torch.randint(vocabulary, (rows, LENGTH), generator=generator)

    @torch.inference_mode()
    def errors(self, variants: Sequence[_Variant]) -> list[dict[str, float]]:
        """For each variant: text, random or recall -> squared error over squared output of its
        layer's mixer, on the input that it gets in the original."""
        sources = {
            "text": self.text,
            "random": self.split(self.random),
            "recall": self.split(self.recall[max(self.recall)][0]),
        }
        errors: list[dict[str, float]] = [{} for _ in variants]
        for name, batches in sources.items():
            residual, square = self._errors(batches, variants).T
            for number, error in enumerate((residual / square.clamp_min(1e-300)).tolist()):
                errors[number][name] = error
        return errors

    def _errors(self, batches: Sequence[Tensor], variants: Sequence[_Variant]) -> Tensor:
        """Sums [variants, 2] of squared error and squared output of each variant's mixer."""
        sums: dict[int, Tensor] = {}
        for call in mixer_calls(self.live, batches):
            before = call.output.double()
            for number, variant in enumerate(variants):
                if variant.layer == call.layer:
                    with self.masked(variant):
                        after = call.repeat(self.live.mixers[call.layer]).double()
                    new = torch.stack([(after - before).square().sum(), before.square().sum()])
                    sums[number] = sums[number] + new if number in sums else new
        on_device = [sums[number].to(self.live.device) for number in range(len(variants))]
        return torch.stack(on_device).cpu()

    def masked(self, variant: _Variant) -> AbstractContextManager[None]:
        """Within, the variant's layer is cut."""
        kept: Mapping[int, Kept] = {variant.layer: {variant.axis: variant.kept}}
        return hook_kernels(self.live, lambda call: None, kept=kept, layers=[variant.layer])


@dataclass
class _PartialResult:
    """Results so far, saved in a directory so that a killed run resumes; None: not saved."""

    original: CutSamples | None = None
    errors: list[dict[str, float]] = field(default_factory=list)
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
