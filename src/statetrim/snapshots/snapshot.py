"""Checkpoint + text -> Snapshots: what stored states take and lose, code by code."""

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..artifacts.snapshots import CodeResult, Snapshots
from ..maths.paired import Pairs, difference_interval
from ..options import as_record, takes_options
from ..progress import Advance, counter, progress_reporter
from ..runtime.corpus import Corpus
from ..runtime.live import LiveModel
from ..runtime.loading import load_live
from ..storage.checkpoint import Checkpoint
from ..storage.models import ModelLike, as_checkpoint
from ..storage.output import run_and_save
from ..version import __version__
from .coding import rounded
from .layout import BFLOAT16, LOW_RANK
from .metric import Metrics, metric_digest, state_metrics
from .options import SnapshotOptions
from .prompt import code_cache, keys_first, restored, slots

Code = str | float
"""The name of a plain code, or the tolerance of ours."""
PLAIN_CODES: Mapping[str, int] = {"bfloat16": BFLOAT16, "int8": 8, "int5": 5, "int4": 4}
"""Bits of a number. The integers have a float16 step per key channel, as engines do it."""


@dataclass(frozen=True, eq=False)
class Copies:
    """The copies of all sequences in a cache."""

    state_bytes: int
    float32_bytes: int
    convolution_bytes: int  # 0 for a plain code, which leaves them as they are
    encode_seconds: float
    decode_seconds: float
    ranks: Mapping[int, Tensor]
    """Layer -> mean rank [value heads] over the sequences; 0 for a head of another mode."""
    worst_error: float | None = None  # relative, over all heads; None for a plain code

    @property
    def share(self) -> float:
        """Bytes of the states as a share of those in float32."""
        return self.state_bytes / self.float32_bytes


@takes_options(SnapshotOptions)
def snapshot(model: ModelLike, options: SnapshotOptions) -> Snapshots:
    """Read prompts, store their states in every code, read on, and compare with no copy at all."""
    checkpoint = as_checkpoint(model)
    metrics = state_metrics(options.statistics, checkpoint)
    record = as_record(options) | {
        "format": "statetrim snapshot",
        "device": None if options.device is None else str(options.device),
        "dtype": options.dtype_text,
        "source": checkpoint.digest,
        "metric": metric_digest(metrics),
    }

    def make(_: Any) -> Snapshots:
        data = Corpus(options.text, checkpoint).read(
            tokens=2 * options.length * options.sequences,
            length=2 * options.length,
            skip=options.skip,
        )
        live = load_live(checkpoint, options.placement)
        with progress_reporter(options.progress, "coding states") as report:
            count = counter(report, len(codes) * data.tokens, "tokens")
            trial = _Trial(live, data.batches(options.batch_size), options.length, metrics, count)
            with torch.inference_mode():
                results = [trial.result(code) for code in codes]
                tolerance = min(options.tolerances, key=lambda value: abs(value - 0.05))
                ranks, lengths = trial.ranks[tolerance], trial.measure_byte_shares(tolerance)
        lineage = {**record, "statetrim": __version__, "data": data.lineage}
        lineage |= {"runtime": live.runtime.name}
        return Snapshots([trial.float32(), *results], tolerance, ranks, lengths, lineage)

    codes: list[Code] = [*PLAIN_CODES, *sorted(options.tolerances)]
    return run_and_save(options.out, record, make, Snapshots.load)


class _Trial:
    """The prompts, what follows them, and the losses without a copy."""

    def __init__(
        self,
        live: LiveModel,
        batches: Sequence[Tensor],
        length: int,
        metrics: Metrics | None,
        count: Advance,
    ) -> None:
        self.live, self.batches, self.length = live, batches, length
        self.metrics, self.count = metrics, count
        self.ranks: dict[float, dict[int, list[float]]] = {}
        self.sequences = sum(len(batch) for batch in batches)
        with torch.inference_mode():
            self.exact, _ = self._read(None)

    def _read(self, code: Code | None) -> tuple[Tensor, list[Copies]]:
        """NLL [sequences] after the prompts, float64, and the copies that were made."""
        losses, copies = list[Tensor](), list[Copies]()
        for batch in self.batches:
            prompt, rest = batch[:, : self.length], batch[:, self.length :].to(self.live.device)
            _, cache = self.live.forward_with_cache(prompt)
            if code is not None:
                copies.append(recode(cache, self.live.checkpoint, code, self.metrics))
                self.count(batch.numel())
            logits, _ = self.live.forward_with_cache(rest[:, :-1], cache, keep=self.length - 1)
            nll = functional.cross_entropy(logits.mT.float(), rest[:, 1:], reduction="none")
            losses.append(nll.mean(1).double().cpu())
        return torch.cat(losses), copies

    def result(self, code: Code) -> CodeResult:
        """Bytes, loss and time of one code; keeps the ranks of ours."""
        losses, copies = self._read(code)
        change = difference_interval([Pairs(self.exact, losses)])
        if isinstance(code, float):
            self.ranks[code] = {}
            for layer in copies[0].ranks:
                mean = torch.stack([item.ranks[layer] for item in copies]).mean(0)
                self.ranks[code][layer] = mean.tolist()
        state_bytes = sum(item.state_bytes for item in copies)
        return CodeResult(
            code if isinstance(code, str) else f"within {code:g}",
            state_bytes / sum(item.float32_bytes for item in copies),
            state_bytes / self.sequences,
            (change.estimate, change.low, change.high),
            1000 * sum(item.encode_seconds for item in copies) / self.sequences,
            1000 * sum(item.decode_seconds for item in copies) / self.sequences,
            sum(item.convolution_bytes for item in copies) / self.sequences,
        )

    def float32(self) -> CodeResult:
        """The copy that changes nothing."""
        geometry = self.live.checkpoint.geometry
        state_bytes = 4 * geometry.num_v_heads * sum(k * v for k, v in geometry.shapes.values())
        return CodeResult("float32", 1.0, state_bytes, (0.0, 0.0, 0.0), 0.0, 0.0)

    def measure_byte_shares(self, tolerance: float) -> dict[int, float]:
        """Tokens read -> share of the float32 bytes, on the first batch."""
        shares, cache, read = dict[int, float](), None, 0
        for length in (self.length // 4, self.length // 2, self.length, 2 * self.length):
            _, cache = self.live.forward_with_cache(self.batches[0][:, read:length], cache)
            copied = copy.deepcopy(cache)
            copies = recode(copied, self.live.checkpoint, tolerance, self.metrics)
            shares[length], read = copies.share, length
        return shares


def recode(cache: Any, model: Checkpoint, code: Code, metrics: Metrics | None = None) -> Copies:
    """Replace the states in `cache` by what their code decodes to."""
    states = [slot for slot in slots(cache) if slot.is_state]
    float32_bytes = sum(slot.value.numel() * 4 for slot in states)
    began = time.perf_counter()
    if isinstance(code, str):
        coded_bytes = 0
        for slot in states:
            turned = keys_first(slot.value, model)
            keys, values = turned.shape[-2:]
            bits, matrices = PLAIN_CODES[code], turned.float().reshape(-1, keys, values)
            decoded = rounded(matrices, bits).reshape(turned.shape).to(turned)
            slot.put(keys_first(decoded, model).contiguous())
            steps = 0 if bits == BFLOAT16 else 2 * keys
            coded_bytes += len(matrices) * (keys * values * bits // 8 + steps)
        seconds = time.perf_counter() - began
        return Copies(coded_bytes, float32_bytes, 0, seconds, 0.0, {})
    stored = code_cache(cache, model, code, metrics)
    encoded_at = time.perf_counter()
    for slot in slots(cache):
        if slot.name in stored.coded:
            slot.put(restored(slot, stored, model))
    decoded_at = time.perf_counter()
    coded_bytes, ranks = 0, {}
    for slot in states:
        coded = stored.coded[slot.name]
        coded_bytes += coded.nbytes
        codes, by_head = coded.codes, torch.zeros(coded.shape[0])
        by_head[codes.modes == LOW_RANK] = codes.ranks.float()
        ranks[slot.layer] = by_head.reshape(stored.header.batch, -1).mean(0)
    return Copies(
        coded_bytes,
        float32_bytes,
        sum(coded.nbytes for coded in stored.coded.values()) - coded_bytes,
        encoded_at - began,
        decoded_at - encoded_at,
        ranks,
        stored.header.worst_error,
    )
