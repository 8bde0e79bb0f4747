"""Checkpoint + text -> Statistics: a forward pass that keeps sums, never activations.

The unit of work is a batch, whose rows do not depend on the number of processes: the same
numbers are added in every case. Models larger than memory are read layer by layer: all batches pass
one layer, then the next, and finished layers are saved.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..artifacts.statistics import TEXT, Statistics
from ..cut.geometry import contains
from ..defaults import HEAD_METHOD, KEY_METHOD, RECALL_SHARE, VALUE_METHOD
from ..errors import StatetrimError
from ..maths.units import parse_token_count
from ..methods import find_method
from ..options import takes_options
from ..progress import OnProgress, Progress, progress_reporter
from ..runtime.corpus import as_corpus
from ..runtime.distributed import DistributedContext
from ..runtime.live import LiveModel
from ..runtime.loading import load_live, load_tokenizer
from ..runtime.logits import LogitReader
from ..runtime.sequential import LayerWalk
from ..statistics import STATISTICS
from ..statistics.readouts import REFIT_STATISTICS
from ..statistics.statistic import Gradients, Statistic
from ..storage.checkpoint import Checkpoint, check_prunable, require_prunable
from ..storage.models import ModelLike, as_checkpoint
from ..storage.output import Output, file_digest, open_output, partial_path
from ..storage.space import check_space, check_writable
from ..storage.text import Sequences
from ..tasks.recall import recall_sequences
from ..version import __version__
from .options import CalibrateOptions
from .sums import Sums, calibration_hooks


@takes_options(CalibrateOptions)
def calibrate(model: ModelLike, options: CalibrateOptions) -> Statistics:
    """Run `tokens` ("64k") of `text`, after `skip`, and collect the sums that `methods` need (None:
    the default ones of the axes that can be cut). Ready `Sequences` are all run.

    `recall` is the fraction of the tokens that are generated recall sequences (None: a quarter, if
    `text` is a text). Their sums are stored separately, so that `select` and `refit` can weight
    them. `seed` changes the generated sequences.
    With `original`, the model before the cut, the original runs, the inputs of each of its layers
    also go through this model's layer, and the sums are those that `refit` needs: 8 bytes x n (n +
    hidden size) per layer, n = value heads x value channels of the cut model.

    With `out` the result is written there. Under torchrun each process takes its share of the
    batches, and all return the complete sums; `progress` counts this process's tokens.
    `layerwise` is for models larger than memory: each decoder layer is read from disk once, and all
    batches pass through it. With `out` the same call resumes after the last layer.
    `dtype`, `device`, ... are those of `load`."""
    model = as_checkpoint(model)
    if options.out is not None:
        check_writable(options.out)
    original = None
    if options.original is None:
        methods = options.methods or _default_methods(model)
        statistics = _needed_statistics(methods, options.layerwise)
    else:
        original = require_prunable(as_checkpoint(options.original))
        same_type = original.model_type == model.model_type
        if not same_type or not contains(original.geometry, model.geometry):
            raise StatetrimError(
                f"{model.path} was not cut from {original.path}: their layers or heads differ"
            )
        statistics = list(REFIT_STATISTICS)
    sources = _load_sources(model, options)
    lineage = {
        "statetrim": __version__,
        "source": model.digest,
        "parts": sorted(statistic.name for statistic in statistics),
        "dtype": options.dtype_text,
        "batch_size": options.batch_size,
        "data": [source.lineage for source in sources.values()],
    } | ({} if original is None else {"original": original.digest})
    own_methods = [Path(name) for name in options.methods or () if name.endswith(".py")]
    if own_methods:  # a saved layer is of the statistics that their files define
        lineage["methods"] = {path.name: file_digest(path) for path in own_methods}
    ranks = DistributedContext.join()
    sums = {name: Sums(model, statistics) for name in sources}
    batches = _batches_of_rank(sources, options.batch_size, ranks)
    with (
        open_saved_sums(options.out, ranks, lineage) as saved,
        progress_reporter(options.progress, "calibrating") as report,
    ):
        if saved and saved.out.exists():  # published by a run that was killed at its very end
            return Statistics.load(saved.out)
        models = [model] if original is None else [original, model]
        live_models = [load_live(each, options.placement) for each in models]
        if options.layerwise:
            calibrate_layerwise(live_models, sums, batches, saved, report)
        else:
            _run_batches(live_models, sums, batches, sources, report)
        for source_sums in sums.values():
            source_sums.tokens = ranks.all_reduce(source_sums.cpu_tensors(), source_sums.tokens)
        by_source = {name: each.layer_statistics for name, each in sums.items()}
        collected = Statistics(by_source.pop(TEXT), lineage, by_source)
        if saved and saved.partial_output is not None:
            collected.save(saved.partial_output.path / "statistics.safetensors")
            saved.partial_output.publish()
        if saved:
            ranks.barrier()  # until rank 0 has published the result
        return collected


def _default_methods(model: Checkpoint) -> list[str]:
    """The default method of each axis that can be pruned; that of heads if no axis can."""
    if model.family.channel_refusal(model.config):
        return [HEAD_METHOD]
    try:
        check_prunable(model, "value")
    except StatetrimError:
        return [KEY_METHOD]
    return [KEY_METHOD, VALUE_METHOD]


def _run_batches(
    live_models: Sequence[LiveModel],
    sums: Mapping[str, Sums],
    batches_by_source: Mapping[str, list[Tensor]],
    sources: Mapping[str, Sequences],
    report: OnProgress,
) -> None:
    """Run all batches, for sums of gradients also backward."""
    live = live_models[0]
    total_tokens = sum(batch.numel() for batches in batches_by_source.values() for batch in batches)
    for source, batches in batches_by_source.items():
        source_sums, reader = sums[source], None
        if source_sums.sees(Gradients):
            _enable_projection_gradients(live)
            reader = LogitReader(live)  # outside the hooks: its probe must not be counted
        with calibration_hooks(live_models, source_sums):
            for batch in batches:
                if reader is not None:
                    _backward_loss(reader, batch, sources[source].answer_positions)
                    source_sums.on_gradients(live.mixers)
                else:
                    with torch.inference_mode():
                        live.hidden_states(batch)  # no method needs logits
                source_sums.tokens += batch.numel()
                tokens_read = sum(each.tokens for each in sums.values())
                report(Progress(tokens_read, total_tokens, "tokens"))


def _batches_of_rank(
    sources: Mapping[str, Sequences], batch_size: int, ranks: DistributedContext
) -> dict[str, list[Tensor]]:
    """This process's batches of every source, at least one of each."""
    batches_by_source = {}
    for name, source in sources.items():
        batches_by_source[name] = ranks.shard(source.batches(batch_size))
        if not batches_by_source[name]:
            raise StatetrimError(
                f"{source.tokens} tokens of {name} in batches of {batch_size} sequences leave "
                f"process {ranks.rank} without work; start fewer processes or make smaller batches"
            )
    return batches_by_source


def _load_sources(model: Checkpoint, options: CalibrateOptions) -> dict[str, Sequences]:
    """The text and the generated recall sequences, `tokens` in all; ready ones stay whole."""
    text, recall = options.text, options.recall
    if recall is None:
        recall = 0.0 if isinstance(text, Sequences) else RECALL_SHARE
    tokens = parse_token_count(options.tokens)
    recall_tokens = int(recall * tokens)
    if not recall_tokens and isinstance(text, Sequences):
        return {TEXT: text}
    require_prunable(model)
    if isinstance(text, Sequences):
        tokenizer, sources = load_tokenizer(model), {TEXT: text}
    else:
        corpus = as_corpus(text, model)
        tokenizer, text_tokens = corpus.tokenizer, tokens - recall_tokens
        read = corpus.read(tokens=text_tokens, length=options.length, skip=options.skip)
        sources = {TEXT: read}
    if recall_tokens:
        sources["recall"] = recall_sequences(tokenizer, recall_tokens, options.seed)
    return sources


def _backward_loss(reader: LogitReader, batch: Tensor, answer_positions: Tensor | None) -> None:
    """Accumulate the gradient of the next-token loss, summed over tokens so that batches add; with
    `answer_positions` of these alone: the other tokens of a generated sequence are random."""

    def loss(logits: Tensor, positions: Tensor) -> Tensor:
        targets = batch[:, positions + 1].flatten().to(logits.device)
        return functional.cross_entropy(logits.flatten(0, 1), targets, reduction="sum")

    positions = torch.arange(batch.shape[1] - 1) if answer_positions is None else answer_positions
    reader.backward(batch, positions, loss)


def _enable_projection_gradients(live: LiveModel) -> None:
    """Require gradients of the query and key projections of all mixers, and of nothing else."""
    model = live.checkpoint
    live.module.requires_grad_(False)
    for channel_rows in model.channels(model.geometry.layers[0]):
        if channel_rows.role in ("q_proj", "k_proj"):
            for mixer in live.mixers.values():
                mixer.get_parameter(channel_rows.tensor).requires_grad_(True)


def _needed_statistics(methods: Iterable[str], layerwise: bool) -> list[Statistic]:
    """The statistics that `methods` need, and always "output_square"."""
    needed: dict[str, Statistic] = {}
    for method in map(find_method, methods):
        for statistic in method.needs:
            if needed.setdefault(statistic.name, statistic) is not statistic:
                raise StatetrimError(
                    f"two methods define a statistic {statistic.name!r}; rename one"
                )
            if layerwise and statistic.sees is Gradients:
                raise StatetrimError(
                    f"{method.name!r} needs the whole model in memory; leave it out to calibrate "
                    f"layerwise"
                )
    if not needed:
        raise StatetrimError(f"{', '.join(methods)} needs no calibration; run: statetrim select")
    return list({**needed, "output_square": STATISTICS["output_square"]}.values())


@dataclass(frozen=True, eq=False)
class SavedSums:
    """The saved sums of this process; `partial_output`, of rank 0 only, publishes the result."""

    out: Path
    partial_output: Output | None
    ranks: DistributedContext
    lineage: Mapping[str, Any]

    @property
    def layerwise_directory(self) -> Path:
        """Hidden states and finished layers of a layerwise calibration."""
        return partial_path(self.out) / f"walk-{self.ranks.rank}-of-{self.ranks.world_size}"

    def save_layer(self, sums: Mapping[str, Sums], layer: int) -> None:
        """Save the sums of a layer that all batches have passed as `layer-LAYER.safetensors`."""
        by_source = {name: {layer: each.layer_statistics[layer]} for name, each in sums.items()}
        path = self.layerwise_directory / f"layer-{layer}.safetensors"
        Statistics(by_source.pop(TEXT), self.lineage, by_source).save(path)

    def restore_layers(self, sums: Mapping[str, Sums], layers: Iterable[int]) -> None:
        """Load the saved sums of `layers` into `sums`."""
        for layer in layers:
            saved = Statistics.load(self.layerwise_directory / f"layer-{layer}.safetensors")
            for source, saved_layers in saved.sources.items():
                sums[source].restore(saved_layers)


@contextmanager
def open_saved_sums(
    out: str | Path | None,
    ranks: DistributedContext,
    lineage: Mapping[str, Any],
) -> Iterator[SavedSums | None]:
    """`OUT.partial`, locked by rank 0, for the sums of this calibration; None without `out`."""
    if out is None:
        yield None
        return
    out, partial_output = Path(out), None
    with ExitStack() as stack:
        if ranks.rank == 0:
            record = {"format": "statetrim calibrate", **lineage, "processes": ranks.world_size}
            files = {"statistics.safetensors": out}
            partial_output = stack.enter_context(
                open_output(out, "job.json", record, files=files, temporary_patterns=["walk-*"])
            )
        ranks.barrier()  # until rank 0 has checked and locked the directory
        yield SavedSums(out, partial_output, ranks, lineage)


_HIDDEN_BYTES = 4  # per channel of a hidden state, at most


def calibrate_layerwise(
    live_models: Sequence[LiveModel],
    sums: Mapping[str, Sums],
    batches_by_source: Mapping[str, Sequence[Tensor]],
    saved: SavedSums | None,
    progress: OnProgress,
) -> None:
    """Add all batches to the sums, from the layer where an earlier run stopped. The layers of a
    second model, cut from the first, get the same inputs. Without `saved`, hidden states are kept
    in main memory and nothing is resumed."""
    batches: list[Tensor] = []
    total_tokens = 0
    for source, source_batches in batches_by_source.items():
        batches += source_batches
        sums[source].tokens = sum(batch.numel() for batch in source_batches)
        total_tokens += sums[source].tokens
    walk = LayerWalk(live_models[0], batches, saved.layerwise_directory if saved else None)
    layers = live_models[0].checkpoint.geometry.layers
    if saved:
        saved.restore_layers(sums, [layer for layer in layers if layer < walk.layer])
        hidden_size = int(live_models[0].module.get_input_embeddings().weight.shape[1])
        check_space(saved.layerwise_directory, 2 * _HIDDEN_BYTES * total_tokens * hidden_size)
    depth = max(layers) + 1
    for number in walk.layers(depth):
        if number in layers:
            _add_layer(live_models, walk, sums, batches_by_source)
            if saved:
                saved.save_layer(sums, number)
        else:
            for step in range(len(batches)):
                walk.run_batch(step)
        progress(Progress(total_tokens * (number + 1) // depth, total_tokens, "tokens"))


def _add_layer(
    live_models: Sequence[LiveModel],
    walk: LayerWalk,
    sums: Mapping[str, Sums],
    batches_by_source: Mapping[str, Sequence[Tensor]],
) -> None:
    """Pass all batches through the walk's layer; the cut's mixer is in memory only meanwhile."""
    for cut in live_models[1:]:
        assert cut.weights is not None
        cut.weights.load(cut.mixers[walk.layer])
    steps = count()
    for source, batches in batches_by_source.items():
        with calibration_hooks(live_models, sums[source], [walk.layer]):
            for _ in batches:
                walk.run_batch(next(steps))
        sums[source].to_cpu(walk.layer)
    for cut in live_models[1:]:
        assert cut.weights is not None
        cut.weights.unload(cut.mixers[walk.layer])
