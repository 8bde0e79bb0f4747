"""Checkpoint + text -> Memory, Sensitivity: the loss when layers forget, or when one is cut.

Text and recall of each changed model are compared with the original on the same tokens. For Memory
the model runs as it is, then once for each layer without its state or KV cache, without all of
them, and with all states emptied at regular intervals. For Sensitivity no cut is written: the
channels that a plan prunes are masked in the kernels of one layer.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import torch
from torch import Tensor

from ..artifacts.changed_layers import (
    ChangedLayers,
    Forgetting,
    LayerCut,
    Memory,
    MemoryKind,
    Samples,
    Sensitivity,
)
from ..artifacts.plan import Plan
from ..artifacts.record import as_fields, parse_record
from ..cut.shape import CHANNEL_AXES, ChannelAxis, Kept
from ..errors import StatetrimError
from ..maths.units import parse_token_count
from ..options import takes_options
from ..progress import OnProgress, counter, progress_reporter
from ..runtime.corpus import Corpus, as_corpus
from ..runtime.forgetting import attention_calls, emptied_states
from ..runtime.kernel_hooks import hook_kernels
from ..runtime.live import LiveModel
from ..runtime.loading import load_live
from ..runtime.logits import FinalHiddenStates, compare_logits
from ..storage.checkpoint import Checkpoint, require_prunable
from ..storage.json_file import read_json, write_json
from ..storage.models import ModelLike, as_checkpoint
from ..storage.output import run_and_save
from ..storage.text import Sequences
from ..tasks.recall import associations, recalled_share
from ..version import __version__
from .options import MemoryOptions, SensitivityOptions


def sensitivity(
    model: Checkpoint, plans: Sequence[Plan], options: SensitivityOptions
) -> Sensitivity:
    """Measure the loss of pruning each layer alone, for each of `plans` and each axis it prunes.

    There is an evaluation of the original and one per layer, plan and axis. With weights on disk,
    each evaluation reads them once. With `out` intermediate results are in `OUT.partial`, from
    which the same call resumes after an interruption; StatetrimError is raised if `out` exists.
    """
    variants = list(_variants(require_prunable(model), plans))
    tables = [(layer, axis, kept.shape[1], kept.tolist()) for layer, axis, kept in variants]
    length, skip = options.length, parse_token_count(options.skip)
    data = as_corpus(options.text, model).read(
        tokens=options.windows * length, length=length, skip=skip
    )
    lineage = {
        "statetrim": __version__,
        "source": model.digest,
        "dtype": options.dtype_text,
        "data": data.lineage,
        "rows": options.rows,
        "plans": hashlib.sha256(json.dumps(tables).encode()).hexdigest(),
    }

    def measure(directory: Path | None) -> Sensitivity:
        live = load_live(model, options.placement)
        experiment = Experiment(live, data, options.rows, options.batch_size)
        changes = []
        for layer, axis, table in variants:
            kept: dict[int, Kept] = {layer: {axis: table}}
            changes.append(hook_kernels(live, lambda call: None, kept=kept, layers=[layer]))
        with progress_reporter(options.progress, "cutting each layer alone") as report:
            samples = experiment.all_samples(changes, directory, report)
        cuts = []
        for (layer, axis, table), measured in zip(variants, samples, strict=True):
            cuts.append(LayerCut(layer, axis, table.shape[1], measured))
        widths: dict[ChannelAxis, int] = {x: model.geometry.width(x) for x in CHANNEL_AXES}
        return Sensitivity(experiment.samples(), cuts, widths, lineage)

    record = {"format": "statetrim sensitivity job", **lineage}
    return run_and_save(options.out, record, measure, Sensitivity.load, temporary_patterns=[SO_FAR])


def _variants(
    model: Checkpoint, plans: Sequence[Plan]
) -> Iterator[tuple[int, ChannelAxis, Tensor]]:
    """Every layer and axis that a plan prunes, with the kept channels; refuses none, and equal
    widths of one layer and axis."""
    seen: set[tuple[int, ChannelAxis, int]] = set()
    for plan in plans:
        source = plan.lineage.get("source")
        if source is not None and not model.has_digest(source):
            raise StatetrimError("a plan was made for another model; select channels of this one")
        for axis, axis_plan in plan.axes.items():
            if axis == "head":
                raise StatetrimError("a plan removes heads; only channels are cut layer by layer")
            for layer, kept in axis_plan.kept.items():
                keep = kept.shape[1]
                if keep == model.geometry.for_layer(layer).width(axis):
                    continue
                if (layer, axis, keep) in seen:
                    raise StatetrimError(
                        f"two plans keep {keep} {axis} channels; give each width once"
                    )
                seen.add((layer, axis, keep))
                yield layer, axis, kept
    if not seen:
        raise StatetrimError("no plan cuts anything, so there is nothing to compare")


HORIZONS = (16, 64, 256, 1024)  # tokens after which all states are emptied


@takes_options(MemoryOptions)
def analyze_memory(model: ModelLike, options: MemoryOptions) -> Memory:
    """Measure what text and recall lose when each layer alone, and all, find nothing of earlier
    tokens in their state or KV cache; and when all states are emptied every 16 to 1024 tokens.

    Each measurement reads `tokens` of `text` after `skip`, and `rows` recall sequences of each
    load. With weights on disk (`layerwise`) it reads them once. With `out` the result is written
    there, and the same call resumes after an interruption.
    """
    checkpoint, length = as_checkpoint(model), options.length
    extent = {"tokens": parse_token_count(options.tokens), "skip": parse_token_count(options.skip)}
    data = Corpus(options.text, checkpoint).read(**extent, length=length)
    if len(data.ids) < 2:
        raise StatetrimError(
            f"one window of {length} tokens gives no interval; read more tokens, or shorter windows"
        )
    lineage = {
        "statetrim": __version__,
        "source": checkpoint.digest,
        "dtype": options.dtype_text,
        "data": data.lineage,
        "rows": options.rows,
    }

    def measure(directory: Path | None) -> Memory:
        live, softmax_layers = load_live(checkpoint, options.placement), set[int]()
        with attention_calls(live, on_call=softmax_layers.add):
            experiment = Experiment(live, data, options.rows, options.batch_size)
        settings = list(_settings(live, sorted(softmax_layers), data.ids.shape[1]))
        changes = [
            attention_calls(live, blind=layers)
            if kind == "KV cache"
            else emptied_states(live, layers, every)
            for kind, layers, every in settings
        ]
        with progress_reporter(options.progress, "forgetting") as report:
            samples = experiment.all_samples(changes, directory, report)
        measured = [Forgetting(*x, y) for x, y in zip(settings, samples, strict=True)]
        return Memory(experiment.samples(), measured, range_ends(length - 1), lineage)

    record = {"format": "statetrim memory job", **lineage}
    return run_and_save(options.out, record, measure, Memory.load, temporary_patterns=[SO_FAR])


def _settings(
    live: LiveModel, softmax_layers: list[int], length: int
) -> Iterator[tuple[MemoryKind, list[int], int]]:
    """What forgets, which layers, and after how many tokens."""
    linear_layers = list(live.checkpoint.geometry.layers)
    singles: list[tuple[int, MemoryKind]] = [(layer, "state") for layer in linear_layers]
    singles += [(layer, "KV cache") for layer in softmax_layers]
    for layer, kind in sorted(singles):
        yield kind, [layer], 1
    if len(softmax_layers) > 1:
        yield "KV cache", softmax_layers, 1
    if len(linear_layers) > 1:
        yield "state", linear_layers, 1
    for every in HORIZONS:
        if every < length:
            yield "state", linear_layers, every


LOADS = (16, 32, 63)  # key-value pairs per recall sequence
FIRST_RANGE = 16  # tokens read; every following range of positions ends at twice as many
SO_FAR = "so-far.json"
"""The file with the samples of a killed run."""


class Experiment:
    """Sequences to run every changed model on, and the original's final hidden states for them."""

    def __init__(self, live: LiveModel, data: Sequences, rows: int, batch_size: int) -> None:
        self.live, self.batch_size = live, batch_size
        self.text = data.batches(batch_size)
        vocabulary = int(live.lm_head.weight.shape[0])
        loads = [pairs for pairs in LOADS if pairs <= vocabulary // 4]
        if not loads:
            raise StatetrimError(f"a vocabulary of {vocabulary} is too small for recall sequences")
        self.recall: dict[int, tuple[Tensor, Tensor]] = {}  # pairs -> token ids, answer positions
        self.batches = [*self.text]
        for pairs in loads:
            self.recall[pairs] = associations(vocabulary, pairs, rows)
            self.batches += torch.split(self.recall[pairs][0], batch_size)
        self.original = FinalHiddenStates(live, self.batches)

    def all_samples(
        self,
        changes: Sequence[AbstractContextManager[None]],
        directory: Path | None,
        progress: OnProgress,
    ) -> list[Samples]:
        """Samples within each of `changes`, kept in `directory` so that a killed run resumes."""
        saved, so_far = directory and directory / SO_FAR, list[Samples]()
        if saved and saved.exists():
            stored = read_json(saved, ChangedLayers.MAX_BYTES).get("samples")
            so_far = parse_record(stored, list[Samples], saved)
        advance = counter(progress, len(changes), "settings")
        for number, changed in enumerate(changes):
            if number == len(so_far):
                so_far.append(self.samples(changed))
                if saved:
                    write_json(saved, as_fields({"samples": so_far}), indent=None)
            advance(1)
        return so_far

    @torch.inference_mode()
    def samples(self, changed: AbstractContextManager[None] | None = None) -> Samples:
        """Of the model within `changed`, or of the original, from its stored hidden states."""
        reading = self.original
        if changed is not None:
            with changed:
                reading = FinalHiddenStates(self.live, self.batches)
        nll: list[Tensor] = []
        kl: list[float] = []
        for number, batch in enumerate(self.text):
            after = reading.logits_at(number)
            before = after if changed is None else self.original.logits_at(number)
            both = compare_logits(before, after, batch)
            nll.append(-both.token_log_likelihood)
            kl += both.kl.tolist()
        shares: dict[int, list[float]] = {}
        number = len(self.text)
        for pairs, (ids, positions) in self.recall.items():
            shares[pairs] = []
            for batch_ids in torch.split(ids, self.batch_size):
                logits = reading.logits_at(number)(positions)
                shares[pairs] += recalled_share(batch_ids, positions, logits).tolist()
                number += 1
        by_token = torch.cat(nll)  # [windows, time - 1]
        ends = range_ends(by_token.shape[1])
        ranges = by_token.mean(0).tensor_split(ends[:-1])
        by_position = [float(part.mean()) for part in ranges]
        return Samples(by_token.mean(1).tolist(), kl, shares, by_position)


def range_ends(predictions: int) -> list[int]:
    """The ends of the ranges of positions of a window: 16, 32, 64 and so on, and the last."""
    ends, end = [], FIRST_RANGE
    while end < predictions:
        ends.append(end)
        end *= 2
    return [*ends, predictions]
