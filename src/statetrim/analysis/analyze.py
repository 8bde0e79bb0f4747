"""Checkpoint + text -> Analysis: how much of its state a model uses, by the recurrence it runs.

The model runs once; its states are recomputed in float64 from the arguments of its kernels, a few
at a time, so memory does not grow with the length of a sequence.
"""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..artifacts.analysis import BINS, BINS_PER_DECADE, LOWEST_DECADE, Analysis, LayerAnalysis
from ..cut.geometry import Geometry
from ..errors import StatetrimError
from ..families.contract import Family
from ..maths.linalg import condition_number
from ..options import takes_options
from ..progress import Advance, counter, progress_reporter
from ..runtime.corpus import Corpus
from ..runtime.kernel_hooks import KernelCall, hook_kernels
from ..runtime.loading import load_live
from ..runtime.sequential import run_hooked
from ..runtime.states import StateStorage, stored_states, walk_states
from ..storage.checkpoint import Checkpoint, require_prunable
from ..storage.models import ModelLike, as_checkpoint
from ..storage.text import Sequences
from ..version import __version__
from .options import AnalyzeOptions

LENGTH = 2048


@takes_options(AnalyzeOptions)
def analyze(model: ModelLike, options: AnalyzeOptions) -> Analysis:
    """Run `tokens` ("16k") of `text`, after `skip`, and measure every linear layer's states.

    States are sampled after every `every`-th token.
    The first `burn_in` tokens of a sequence count in curves over tokens only. A `baseline` is run
    on the same text and is stored in the result's `baseline`. `layerwise` reads one layer after the
    other from disk, for models larger than memory; `dtype`, `device`, `device_map` and `max_memory`
    are those of `load`. With a `state_dtype`, all models store their states in it after every 64
    tokens, as an engine would, and these states are measured.
    """
    storage = StateStorage(options.state_dtype)
    length = options.length or LENGTH
    if not 0 <= options.burn_in < length:
        raise StatetrimError(
            f"the first {options.burn_in} tokens are left out of spectra, so sequences of {length} "
            f"tokens leave nothing; make them longer or the burn-in shorter"
        )
    model = as_checkpoint(model)
    baseline = None if options.baseline is None else as_checkpoint(options.baseline)
    if baseline is not None and baseline.geometry.resized(1, 1) != model.geometry.resized(1, 1):
        raise StatetrimError("the baseline has other layers or heads, so nothing would compare")
    models = [model] if baseline is None else [model, baseline]
    texts = []
    for each in map(require_prunable, models):
        corpus = Corpus(options.text, each)
        texts.append(corpus.read(tokens=options.tokens, length=length, skip=options.skip))
    if texts[0].lineage["digest"] != texts[-1].lineage["digest"]:
        raise StatetrimError("the baseline has another tokenizer, so the texts would differ")
    with progress_reporter(options.progress, "analysing") as report:
        count = counter(report, len(models) * texts[0].tokens, "tokens")
        analyses: list[Analysis] = []
        for checkpoint, data in zip(models, texts, strict=True):
            analyses.append(_analyze_one(checkpoint, data, options, storage, count))
    return analyses[0] if baseline is None else replace(analyses[0], baseline=analyses[1])


def _analyze_one(
    model: Checkpoint,
    data: Sequences,
    options: AnalyzeOptions,
    storage: StateStorage,
    count: Advance,
) -> Analysis:
    length, burn_in, every = data.ids.shape[1], options.burn_in, options.every
    tallies: dict[int, _Tally] = {}
    for layer in model.geometry.layers:
        geometry = model.geometry.for_layer(layer)
        tallies[layer] = _Tally(geometry, model.family, length, every, burn_in, storage)

    def hooks(layers: Sequence[int]) -> AbstractContextManager[None]:
        return hook_kernels(live, lambda call: tallies[call.layer].add(call), layers=layers)

    live = load_live(model, options.placement)
    with stored_states(live, storage):
        run_hooked(live, data.batches(options.batch_size), hooks, list(tallies), count)
    return Analysis(
        {layer: tally.result() for layer, tally in tallies.items()},
        model.geometry,
        torch.tensor([*range(every, length, every), length]),
        burn_in,
        {
            "statetrim": __version__,
            "source": model.digest,
            "model_type": model.model_type,
            "runtime": live.runtime.name,
            "dtype": options.dtype_text,
            **({"state_dtype": storage.dtype} if storage.is_lossy else {}),
            "every": every,
            "batch_size": options.batch_size,
            "data": data.lineage,
        },
    )


class _Tally:
    """Sums of one layer over sampled states and sequences; no state is kept.

    The sums are allocated once and updated in place: small tensors allocated between large ones
    would fragment the heap, and memory would grow with the sequence.
    """

    def __init__(
        self,
        geometry: Geometry,
        family: Family,
        length: int,
        every: int,
        burn_in: int,
        storage: StateStorage,
    ) -> None:
        self.geometry, self.family, self.storage = geometry, family, storage
        self.every, self.length, self.burn_in = every, length, burn_in
        self.states = 0  # states per head in the spectrum
        self._allocate(torch.device("cpu"))

    def _allocate(self, device: torch.device) -> None:
        g = self.geometry
        heads, groups, width = g.num_v_heads, g.num_k_heads, g.head_k_dim
        exact: Any = {"dtype": torch.float64, "device": device}
        self.ranks = torch.zeros(heads, math.ceil(self.length / self.every), **exact)
        self.nonzero = torch.zeros_like(self.ranks)  # how many states were not zero
        self.spectrum = torch.zeros(heads, min(width, g.head_v_dim), **exact)
        self.histogram = torch.zeros(heads, BINS, dtype=torch.int64, device=device)
        self.query_gram = torch.zeros(groups, width, width, **exact)
        self.key_gram = torch.zeros_like(self.query_gram)

    def add(self, call: KernelCall) -> None:
        """Add the states, queries and keys of a kernel call."""
        if self.ranks.device != call.key.device:  # a layer's device is known when it first runs
            self._allocate(call.key.device)
        first = 0
        blocks = walk_states(call, self.family, self.every, self.storage.dtype, self.storage.piece)
        for block in blocks:
            self.query_gram += _gram(block.query)
            self.key_gram += _gram(block.key)
            first = self._add_states(first, block.states)

    def _add_states(self, first: int, states: Tensor) -> int:
        """Add the singular values of states [batch, samples, heads, head_k_dim, head_v_dim], the
        samples from number `first`; return the number of the next one. Within the burn-in only
        ranks count."""
        if states.shape[1] == 0:
            return first
        singular = torch.linalg.svdvals(states)  # [batch, samples, heads, rank]
        samples = slice(first, first + singular.shape[1])
        ranks = (singular / singular[..., :1]).square().sum(-1)  # nan for a zero state
        self.ranks[:, samples] += ranks.nansum(0).T
        self.nonzero[:, samples] += ranks.isfinite().sum(0).T
        positions = torch.arange(samples.start + 1, samples.stop + 1) * self.every
        first_counted = int((positions.clamp(max=self.length) <= self.burn_in).sum())
        counted = singular[:, first_counted:].flatten(0, 1)
        self.states += len(counted)
        self.spectrum += counted.sum(0)
        self.histogram += _histogram(counted)
        return int(samples.stop)

    def result(self) -> LayerAnalysis:
        """Means, counts and condition numbers, on the CPU; a mean over no states is nan."""
        return LayerAnalysis(
            effective_rank=(self.ranks / self.nonzero).cpu(),
            spectrum=(self.spectrum / self.states).cpu(),
            histogram=self.histogram.cpu(),
            key_condition=condition_number(self.key_gram).sqrt().cpu(),
            query_condition=condition_number(self.query_gram).sqrt().cpu(),
        )


def _gram(x: Tensor) -> Tensor:
    """Gram matrices [heads, channels, channels] of x [batch, time, heads, channels]."""
    rows = x.flatten(0, 1).transpose(0, 1)
    return rows.mT @ rows


def _histogram(singular: Tensor) -> Tensor:
    """Counts [heads, BINS] of log10 of singular values [states, heads, rank]."""
    bins = ((singular.log10() - LOWEST_DECADE) * BINS_PER_DECADE).floor().clamp(0, BINS - 1).long()
    return torch.stack([head.bincount(minlength=BINS) for head in bins.transpose(0, 1).flatten(1)])
