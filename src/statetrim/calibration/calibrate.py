"""Checkpoint + text -> Statistics: a forward pass that keeps sums, never activations.

The unit of work is a batch, whose rows do not depend on the number of processes or on a resume:
the same numbers are added in every case.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor
from torch.nn import functional

from ..artifacts.statistics import REFIT_SUM_NAMES, SNAPSHOT_SUM_NAMES, TEXT, Statistics
from ..defaults import HEAD_METHOD, KEY_METHOD, RECALL_SHARE, SNAPSHOT, VALUE_METHOD
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
from ..runtime.placement import Placement
from ..storage.checkpoint import Checkpoint, check_values_prunable, require_prunable
from ..storage.models import ModelLike, as_checkpoint
from ..storage.space import check_writable
from ..storage.text import Sequences
from ..tasks.generated import Kind, echo_sequences, random_sequences, recall_sequences
from ..version import __version__
from .hooks import calibration_hooks
from .layerwise import calibrate_layerwise
from .options import CalibrateOptions
from .pair_hooks import check_cut_from
from .saved_sums import SavedSums, open_saved_sums
from .sums import Sums, to_statistics

GRADIENT_SUMS = {"query_gradient", "key_gradient"}


@takes_options(CalibrateOptions)
def calibrate(model: ModelLike, options: CalibrateOptions) -> Statistics:
    """Run `tokens` ("64k") of `text`, after `skip`, and collect the sums that `methods` need (None:
    the default ones of the axes that can be cut; "snapshot": the metric of stored states). Ready
    `Sequences` are all run.

    `recall`, `random` and `echo` are the fractions of the tokens that are generated: recall
    sequences (None: a quarter, if `text` is a text), random tokens, and passages of the text that
    are given twice. The sums of each source are stored separately, so that `select` and `refit` can
    weight them. `seed` changes the generated sequences.
    With `original`, the model before the cut, the original runs, the inputs of each of its layers
    also go through this model's layer, and the sums are those that `refit` needs: 8 bytes x n (n +
    hidden size) per layer, n = value heads x value channels of the cut model.

    With `out` the result is written there, and every `save_seconds` to `OUT.partial`, from which
    the same call resumes. Under torchrun each process takes its share of the batches, and all
    return the complete sums; `progress` counts this process's tokens.
    `layerwise` is for models larger than memory: each decoder layer is read from disk once, and all
    batches pass through it. `dtype`, `device`, ... are those of `load`."""
    model = as_checkpoint(model)
    if options.out is not None:
        check_writable(options.out)
    original = None
    if options.original is None:
        methods = options.methods or _default_methods(model)
        sum_names = _needed_sums(methods, options.layerwise)
    else:
        original = require_prunable(as_checkpoint(options.original))
        check_cut_from(original, model)
        sum_names = sorted(REFIT_SUM_NAMES)
    sources = _load_sources(model, options)
    lineage = {
        "statetrim": __version__,
        "source": model.digest,
        "parts": sum_names,
        "dtype": options.dtype_text,
        "batch_size": options.batch_size,
        "data": [source.lineage for source in sources.values()],
    } | ({} if original is None else {"original": original.digest})
    ranks = DistributedContext.current()
    sums = {name: Sums(model, sum_names) for name in sources}
    batches = _batches_of_rank(sources, options.batch_size, ranks)
    with (
        open_saved_sums(options.out, ranks, lineage, options.save_seconds) as saved,
        progress_reporter(options.progress, "calibrating") as report,
    ):
        if saved and saved.is_finished:
            return Statistics.load(saved.out)
        models = [model] if original is None else [original, model]
        _run_models(models, options.placement, sums, batches, sources, saved, report)
        for source_sums in sums.values():
            source_sums.tokens = ranks.all_reduce(source_sums.cpu_tensors(), source_sums.tokens)
        statistics = to_statistics(sums, lineage)
        if saved:
            saved.finish(statistics)
        return statistics


def _default_methods(model: Checkpoint) -> list[str]:
    """The default method of each axis that can be pruned; that of heads if no axis can."""
    if model.family.channel_refusal(model.config):
        return [HEAD_METHOD]
    try:
        check_values_prunable(model)
    except StatetrimError:
        return [KEY_METHOD]
    return [KEY_METHOD, VALUE_METHOD]


def _run_models(
    models: Sequence[Checkpoint],
    placement: Placement,
    sums: Mapping[str, Sums],
    batches_by_source: Mapping[str, list[Tensor]],
    sources: Mapping[str, Sequences],
    saved: SavedSums | None,
    report: OnProgress,
) -> None:
    """Run all batches through `models` and add to `sums`, except what an earlier run has added.

    Models are loaded only if batches are left to run; layerwise, always.
    """
    runner = None
    if not placement.layerwise:
        total_batches = total_tokens = 0
        for batches in batches_by_source.values():
            total_batches += len(batches)
            for batch in batches:
                total_tokens += batch.numel()
        runner = _BatchRunner(sums, saved, total_tokens, report)
        if runner.batches_done >= total_batches:
            return
    live_models = [load_live(checkpoint, placement) for checkpoint in models]
    if runner is None:
        calibrate_layerwise(live_models, sums, batches_by_source, saved, report)
        return
    for name, batches in batches_by_source.items():
        hooks = calibration_hooks(live_models, sums[name])
        runner.run_source(live_models[0], hooks, name, batches, sources[name])


def _batches_of_rank(
    sources: Mapping[str, Sequences], batch_size: int, ranks: DistributedContext
) -> dict[str, list[Tensor]]:
    """This process's batches of every source. Raises StatetrimError if a source leaves it none."""
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
    """The text (first, as "text") and the generated sequences by kind, `tokens` in all, divided by
    their fractions; a `text` of ready sequences stays whole, in addition to the generated tokens.

    Raises StatetrimError for impossible fractions, and for echo of ready sequences.
    """
    text, length, seed = options.text, options.length, options.seed
    recall = options.recall
    if recall is None:
        recall = 0.0 if isinstance(text, Sequences) else RECALL_SHARE
    shares: dict[Kind, float] = {
        "recall": recall,
        "random": options.random,
        "echo": options.echo,
    }
    _check_shares(shares)
    tokens, skip = parse_token_count(options.tokens), parse_token_count(options.skip)
    counts = {kind: int(share * tokens) for kind, share in shares.items() if share}
    if not counts and isinstance(text, Sequences):
        return {TEXT: text}
    require_prunable(model)
    text_tokens = tokens - sum(counts.values())
    if isinstance(text, Sequences):
        tokenizer, sources = load_tokenizer(model), {TEXT: text}
    else:
        corpus = as_corpus(text, model)
        tokenizer = corpus.tokenizer
        sources = {TEXT: corpus.read(tokens=text_tokens, length=length, skip=skip)}
    for kind, count in counts.items():
        if kind == "recall":
            sources[kind] = recall_sequences(tokenizer, count, seed)
        elif kind == "random":
            sources[kind] = random_sequences(tokenizer, count, length, seed)
        elif isinstance(text, Sequences):
            raise StatetrimError("echo repeats passages of a text; give a text, not token ids")
        else:
            passages = corpus.read(tokens=count // 2, length=length // 2, skip=skip + text_tokens)
            sources[kind] = echo_sequences(passages)
    return sources


def _check_shares(shares: Mapping[Kind, float]) -> None:
    """Raise StatetrimError unless every share is 0 or in (0, 1) and their sum is below 1."""
    in_range, listed = True, []
    for kind, share in shares.items():
        if share != 0:
            in_range = in_range and 0 < share < 1
            listed.append(f"{kind} {share:g}")
    if not in_range or sum(shares.values()) >= 1:
        raise StatetrimError(
            f"{', '.join(listed)}: fractions of the tokens must be between 0 and 1, and leave some "
            f"for text"
        )


class _BatchRunner:
    """Runs the batches of each source, skipping those that an earlier run has added."""

    def __init__(
        self,
        sums: Mapping[str, Sums],
        saved: SavedSums | None,
        total_tokens: int,
        progress: OnProgress,
    ) -> None:
        self.sums, self.saved = sums, saved
        self.total_tokens, self.progress = total_tokens, progress
        self.batches_done = saved.restore(sums) if saved else 0  # by an earlier run
        self.batches_passed = 0  # skipped or run, over all sources

    def run_source(
        self,
        live: LiveModel,
        hooks: AbstractContextManager[None],
        source: str,
        batches: list[Tensor],
        data: Sequences,
    ) -> None:
        """Run the batches of `source` that are left, within `hooks`."""
        remaining = batches[max(0, self.batches_done - self.batches_passed) :]
        self.batches_passed += len(batches) - len(remaining)
        if not remaining:
            return
        reader = None
        if GRADIENT_SUMS & set(self.sums[source].sum_names):
            _enable_projection_gradients(live)
            reader = LogitReader(live)  # outside the hooks: its probe must not be counted
        with hooks:
            self._run_batches(live, reader, self.sums[source], remaining, data.answer_positions)

    def _run_batches(
        self,
        live: LiveModel,
        reader: LogitReader | None,
        sums: Sums,
        batches: list[Tensor],
        answer_positions: Tensor | None,
    ) -> None:
        """Run each batch, with a `reader` also backward for the sums of gradients; then count its
        tokens in `sums`, save if it is time, and report progress."""
        for batch in batches:
            self.batches_passed += 1
            if reader is not None:
                _backward_loss(reader, batch, answer_positions)
                sums.on_gradients(live.mixers)
            else:
                with torch.inference_mode():
                    live.hidden_states(batch)  # no method needs logits
            sums.tokens += batch.numel()
            if self.saved:
                self.saved.save(self.sums, self.batches_passed)
            tokens_read = sum(source_sums.tokens for source_sums in self.sums.values())
            self.progress(Progress(tokens_read, self.total_tokens, "tokens"))


def _backward_loss(reader: LogitReader, batch: Tensor, answer_positions: Tensor | None) -> None:
    """Accumulate the gradient of the next-token loss, summed over tokens so that batches add.

    With `answer_positions` only the tokens after these count: the others of a generated sequence
    are random, and their gradient is noise.
    """

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


def _needed_sums(methods: Iterable[str], layerwise: bool) -> list[str]:
    """Names of the sums that `methods` need, and always of "output_square", sorted. Raises
    StatetrimError if they need none, or if they need gradients and the calibration is layerwise."""
    needed: set[str] = set()
    for name in methods:
        needed.update(SNAPSHOT_SUM_NAMES if name == SNAPSHOT else find_method(name).needs)
    if not needed:
        raise StatetrimError(f"{', '.join(methods)} needs no calibration; run: statetrim select")
    if layerwise and GRADIENT_SUMS & needed:
        raise StatetrimError(
            "'grad' needs the whole model in memory; leave it out to calibrate layerwise"
        )
    return sorted(needed | {"output_square"})
