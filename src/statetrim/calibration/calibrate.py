"""Checkpoint + text -> Statistics: a forward pass that keeps sums, never activations.

The unit of work is a batch of fixed composition. Whoever runs which batch, in one process or in
many, in one go or after a crash, the same numbers are added.
"""

import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..artifacts.statistics import REFIT_PARTS, Statistics
from ..errors import StatetrimError
from ..maths.units import token_count
from ..methods import find_method
from ..progress import OnProgress, Progress, ignore
from ..runtime.kernel_hooks import hook_kernels
from ..runtime.live import LiveModel
from ..runtime.loading import load_live, load_tokenizer
from ..runtime.processes import Ranks
from ..storage.checkpoint import with_weights
from ..storage.models import ModelLike, opened
from ..storage.text import Sequences, sequences
from ..version import __version__
from .pair_hooks import check_cut_from, hook_pairs
from .sums import Sums

GRADIENTS = {"query_gradient", "key_gradient"}


def calibrate(
    model: ModelLike,
    text: str | Path | Sequences,
    *,
    original: ModelLike | None = None,
    tokens: int | str = 2**18,
    methods: Sequence[str] = ("drrqr",),
    length: int = 512,
    batch_size: int = 8,
    skip: int | str = 0,
    dtype: torch.dtype | None = None,
    layerwise: bool = False,
    out: str | Path | None = None,
    resume: bool = False,
    save_seconds: float = 60.0,
    progress: OnProgress = ignore,
) -> Statistics:
    """Run `tokens` ("64k") of `text`, after `skip`, and sum what `methods` need.

    Ready `Sequences` (token ids that are no text, say) are all run, as they are.

    With `original`, the model before the cut, it is the original that runs, each of its layers'
    inputs goes through this model's layer as well, and the sums are those that `refit` needs:
    8 bytes x n (n + hidden size) a layer, n being value heads x value channels of the cut model.

    With `out` the result is written there, and on the way every `save_seconds` to `OUT.partial`,
    from which `resume` goes on. Under torchrun each process takes its share of the batches, and all
    return the whole sums; `progress` is told of this process's tokens. `layerwise` streams the
    weights from disk, for models larger than memory.
    """
    model = opened(model)
    if original is None:
        parts = _parts(methods)
    else:
        original = with_weights(opened(original))
        check_cut_from(original, model)
        parts = sorted(REFIT_PARTS)
    if layerwise and GRADIENTS & set(parts):
        raise StatetrimError(
            "'grad' needs the whole model in memory; leave it out to calibrate layerwise"
        )
    if isinstance(text, Sequences):
        data = text
    else:
        tokenizer = load_tokenizer(with_weights(model))
        data = sequences(
            text, tokenizer, tokens=token_count(tokens), length=length, skip=token_count(skip)
        )
    lineage = {
        "statetrim": __version__,
        "source": model.digest,
        "parts": parts,
        "dtype": str(dtype) if dtype else "stored",
        "batch_size": batch_size,
        "data": [data.lineage],
    } | ({} if original is None else {"original": original.digest})
    ranks, sums = Ranks.of_this_process(), Sums(model, parts)
    batches = ranks.share(data.batches(batch_size))
    if not batches:
        raise StatetrimError(
            f"{data.tokens} tokens in batches of {batch_size} sequences leave process "
            f"{ranks.rank} without work; start fewer processes or make smaller batches"
        )
    partial = _Partial(Path(out), ranks, lineage, resume, save_seconds) if out else None
    done = partial.restore(sums) if partial else 0
    if batches[done:]:
        live = load_live(model, dtype=dtype, layerwise=layerwise)
        if original is None:
            with _hook_sums(live, sums):
                _run_batches(live, sums, batches, done, partial, progress)
        else:
            first = load_live(original, dtype=dtype, layerwise=layerwise)
            with hook_pairs(first, live, sums.on_pair):
                _run_batches(first, sums, batches, done, partial, progress)
    sums.tokens = ranks.add(sums.tensors, sums.tokens)
    statistics = sums.statistics(lineage)
    if partial:
        partial.finish(statistics)
    return statistics


def _hook_sums(live: LiveModel, sums: Sums) -> AbstractContextManager[None]:
    """Within, what the model's kernels and projections are given is added to `sums`."""
    on_input = sums.on_input if "input_square" in sums.parts else None
    on_readout = sums.on_readout if "readout_gram" in sums.parts else None
    return hook_kernels(live, sums.on_call, on_input, on_readout)


def _run_batches(
    live: LiveModel,
    sums: Sums,
    batches: list[Tensor],
    done: int,
    partial: "_Partial | None",
    progress: OnProgress,
) -> None:
    """Run the batches from `done` on, adding to `sums`."""
    total = sum(batch.numel() for batch in batches)
    backward = bool(GRADIENTS & set(sums.parts))
    if backward:
        _train_projections_only(live)
    for number, batch in enumerate(batches[done:], start=done + 1):
        if backward:
            _backward(live, batch)
            sums.on_gradients(live.mixers)
        else:
            with torch.inference_mode():
                live.hidden(batch)  # no method needs logits
        sums.tokens += batch.numel()
        if partial:
            partial.save(sums, number)
        progress(Progress(sums.tokens, total, "tokens"))


def _backward(live: LiveModel, batch: Tensor) -> None:
    """Gradient of the next-token loss, summed over tokens so that batches add."""
    logits = live.logits(batch)[:, :-1].float().flatten(0, 1)
    targets = batch[:, 1:].flatten().to(logits.device)
    loss: Any = functional.cross_entropy(logits, targets, reduction="sum")
    loss.backward()


def _train_projections_only(live: LiveModel) -> None:
    model = live.checkpoint
    live.module.requires_grad_(False)
    for claim in model.family.channels(model.config, model.geometry):
        if claim.role in ("q_proj", "k_proj"):
            for mixer in live.mixers.values():
                mixer.get_parameter(claim.tensor).requires_grad_(True)


def _parts(methods: Iterable[str]) -> list[str]:
    needed = {part for name in methods for part in find_method(name).needs}
    if not needed:
        raise StatetrimError(f"{', '.join(methods)} needs no calibration; run: statetrim select")
    return sorted(needed | {"output_square"})


class _Partial:
    """The sums so far on disk, one file a process, so that a killed run goes on where it was."""

    def __init__(
        self, out: Path, ranks: Ranks, lineage: dict[str, Any], resume: bool, seconds: float
    ) -> None:
        if out.exists():
            raise StatetrimError(f"{out} exists already and is not overwritten; choose another")
        suffix = f".{ranks.rank}-of-{ranks.world}" if ranks.world > 1 else ""
        self.path = out.with_name(f"{out.name}{suffix}.partial")
        if self.path.exists() and not resume:
            raise StatetrimError(
                f"{self.path} is left from an interrupted run; add --resume to go on, or remove it"
            )
        self.out, self.ranks, self.lineage, self.seconds = out, ranks, lineage, seconds
        self.saved_at = time.monotonic()

    def restore(self, sums: Sums) -> int:
        """Put what was saved into `sums`; returns how many batches it holds."""
        if not self.path.exists():
            return 0
        saved = Statistics.load(self.path)
        for name, value in self.lineage.items():
            if saved.lineage.get(name) != value:
                raise StatetrimError(
                    f"{self.path} is left from a run with another {name!r}; "
                    f"repeat that run, or remove it"
                )
        sums.restore(saved)
        return int(saved.lineage["batches"])

    def save(self, sums: Sums, batches: int) -> None:
        if time.monotonic() - self.saved_at >= self.seconds:
            sums.statistics(self.lineage | {"batches": batches}).save(self.path)
            self.saved_at = time.monotonic()

    def finish(self, statistics: Statistics) -> None:
        if self.ranks.rank == 0:
            statistics.save(self.out)
        self.ranks.wait()  # nobody drops its share before the whole is on disk
        self.path.unlink(missing_ok=True)
