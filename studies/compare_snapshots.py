"""Stored states by code: bytes against loss, over turns, by metric and by length, on one model.

    python studies/compare_snapshots.py MODEL --text train.jsonl --test wiki.test.txt \\
        --work FOLDER --results results/snapshots.jsonl --seed 0

The metric is calibrated on `--text`. A model reads a prefix of 256 tokens of the test text, its
states are coded and decoded, and it reads on: the change of NLL over the next 127 tokens, the KL
divergence from the model without a copy, and the change of recall (MQAR: the pairs are the prefix,
the questions the rest). Over turns, states are coded after every turn. Intervals are 95 %, paired
by sequence. A seed takes other calibration text, other test text and other recall sequences. Lines
that exist are not measured again; `--minutes` ends a run early, and the next one resumes it.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

import statetrim as st
from arguments import study_parser
from statetrim.maths.paired import Pairs, difference_interval
from statetrim.portable.kernels import l2_normalized
from statetrim.runtime.corpus import Corpus
from statetrim.runtime.kernel_hooks import KernelCall, hook_kernels
from statetrim.runtime.live import LiveModel
from statetrim.runtime.loading import load_live
from statetrim.snapshots.metric import Metrics, metric_of
from statetrim.snapshots.prompt import slots
from statetrim.snapshots.snapshot import Code, Copies, recode
from statetrim.tasks.recall import associations, recalled_share

PREFIX, REST, BATCH = 256, 128, 16
METRICS = {
    "query": ("query",),
    "read-out": ("readout",),
    "key": ("key",),
    "query and key": ("query", "key"),
    "read-out and key": ("readout", "key"),
}
DEFAULT = "query and key"
VALUES = f"{DEFAULT}, and values"  # also weighted by the output projection
PAIRS, TURNS, TURN_TOKENS = 32, 32, 32

Row = dict[str, Any]


class Grams:
    """Sums over calibration tokens of all Gram matrices that a metric can be made of."""

    def __init__(self, live: LiveModel) -> None:
        self.normalizes = live.checkpoint.family.normalizes_keys
        self.sums: dict[int, dict[str, Tensor]] = {}

    def add(self, call: KernelCall) -> None:
        output = call.output.flatten(0, 1).transpose(0, 1).double()
        grams = self.sums.setdefault(call.layer, {})
        for name, x in (("query", call.query), ("key", call.key)):
            x = x.flatten(0, 1).transpose(0, 1).double()
            if self.normalizes:
                x = l2_normalized(x)
            x = x.repeat_interleave(len(output) // len(x), dim=0)
            grams[name] = grams.get(name, 0) + x.mT @ x
            if name == "query":
                square = output.square().sum(-1, keepdim=True)
                x = x * (square + 1e-6 * square.mean(1, keepdim=True)).rsqrt()
                grams["readout"] = grams.get("readout", 0) + x.mT @ x

    def save(self, path: Path) -> None:
        flat = {f"{i}.{name}": x for i, grams in self.sums.items() for name, x in grams.items()}
        save_file(flat, path)

    def load(self, path: Path) -> None:
        for name, gram in load_file(path).items():
            layer, _, kind = name.partition(".")
            self.sums.setdefault(int(layer), {})[kind] = gram

    def metrics(self, name: str) -> Metrics | None:
        if name == "none":
            return None
        return {
            layer: metric_of(tuple(grams[part] for part in METRICS[name]))
            for layer, grams in self.sums.items()
        }


class Study:
    """One model with one seed: its metric, its test sequences, and the lines that exist."""

    def __init__(self, options: Any) -> None:
        model = st.open(options.model)
        self.live, self.results, self.seed = load_live(model), options.results, options.seed
        self.name, self.sequences = options.name or model.path.name, options.sequences
        self.memory: dict[str, Any] = {}
        self.weights_values = False
        self.ends = time.monotonic() + 60 * options.minutes

        def read(text: Path, rows: int, length: int, skip: int) -> Tensor:
            corpus = Corpus(text, model)
            return corpus.read(tokens=rows * length, length=length, skip=skip).ids.long()

        self.grams = Grams(self.live)
        saved = options.work / f"{self.name}-{self.seed}.safetensors"
        if saved.exists():
            self.grams.load(saved)
        else:
            ids = read(options.text, options.tokens // 512, 512, self.seed * options.tokens)
            with torch.inference_mode(), hook_kernels(self.live, self.grams.add):
                for batch in batches(ids):
                    self.live.hidden_states(batch)
            self.grams.save(saved)
        rows, length = self.sequences, PREFIX + REST
        self.ids = read(options.test, rows, length, self.seed * rows * length)
        first = 2 * rows * length + self.seed * BATCH // 2 * TURNS * TURN_TOKENS
        self.long = read(options.test, BATCH // 2, TURNS * TURN_TOKENS, first)

    def measure(self, part: str, code: Code, metric: str, run: Callable[[], Row]) -> None:
        """Add a line, unless it exists or the time is over."""
        key = {"model": self.name, "seed": self.seed, "part": part, "code": code, "metric": metric}
        lines = self.results.read_text().splitlines() if self.results.exists() else []
        done = [json.loads(line) for line in lines]
        if any(key.items() <= row.items() for row in done) or time.monotonic() > self.ends:
            return
        with torch.inference_mode(), self.results.open("a") as file:
            print(json.dumps(key | run()), file=file)

    def read_prefixes(self, ids: Tensor, prefix: int) -> list[tuple[Tensor, Any]]:
        """What follows the prefix of each batch, and the cache after the prefix."""
        read = []
        for batch in batches(ids):
            _, cache = self.live.forward_with_cache(batch[:, :prefix])
            read.append((batch[:, prefix:], cache))
        return read

    def recode(self, cache: Any, code: Code, metrics: Metrics | None) -> Copies:
        """As `recode`, and if `weights_values` in coordinates of the values in which errors count
        as the output projection weights them."""
        states = [slot for slot in slots(cache) if slot.is_state] if self.weights_values else []
        for slot in states:
            slot.put(slot.value @ self.value_metric(slot.layer).mT)
        copies = recode(cache, self.live.checkpoint, code, metrics)
        for slot in states:
            slot.put(torch.linalg.solve(self.value_metric(slot.layer), slot.value.mT).mT)
        return copies

    def value_metric(self, layer: int) -> Tensor:
        """W [value heads, values, values] of the output projection."""
        weight = self.live.output_projections[layer].get_parameter("weight").double()
        heads = weight.T.reshape(self.live.checkpoint.geometry.num_v_heads, -1, len(weight))
        return metric_of((heads @ heads.mT,))

    def read_text(self, code: Code | None, metrics: Metrics | None) -> tuple[Tensor, list[Copies]]:
        """Log-probabilities [sequences, REST - 1, vocabulary] of the text after the prefix, and
        what the copies took."""
        read, copies = list[Tensor](), list[Copies]()
        for rest, kept in self.known("text", partial(self.read_prefixes, self.ids, PREFIX)):
            cache = copy.deepcopy(kept)
            if code is not None:
                copies.append(self.recode(cache, code, metrics))
            logits, _ = self.live.forward_with_cache(rest[:, :-1], cache, keep=REST - 1)
            read.append(logits.float().log_softmax(-1))
        return torch.cat(read), copies

    def text_changes(self, exact: Tensor, read: Tensor) -> Row:
        """NLL compared with that of `exact`, the KL divergence from it, and that of the first 16
        tokens."""
        words = self.ids[:, PREFIX + 1 :, None]
        nll = [-x.gather(-1, words).squeeze(-1).double().mean(1) for x in (exact, read)]
        kl = functional.kl_div(read, exact, reduction="none", log_target=True).sum(-1).double()
        return {
            "nll": change(*nll),
            "kl": change(torch.zeros(len(kl)), kl.mean(1)),
            "kl, first 16": change(torch.zeros(len(kl)), kl[:, :16].mean(1)),
        }

    def recall(self, code: Code | None, metrics: Metrics | None, pairs: int) -> Tensor:
        """Percent of values recalled [sequences], with the states coded after the pairs."""
        ids, positions = associations(self.live.vocab_size, pairs, self.sequences, seed=self.seed)
        prefixes = self.known(f"{pairs} pairs", partial(self.read_prefixes, ids, 2 * pairs))
        shares = list[Tensor]()
        for batch, (rest, kept) in zip(batches(ids), prefixes, strict=True):
            cache = copy.deepcopy(kept)
            if code is not None:
                self.recode(cache, code, metrics)
            logits, _ = self.live.forward_with_cache(rest, cache, keep=2 * pairs)
            shares.append(recalled_share(batch, positions, logits[:, positions - 2 * pairs]))
        return 100 * torch.cat(shares).double()

    def turn_recall(self, code: Code | None, metrics: Metrics | None) -> Tensor:
        """As `recall` of 32 pairs, with the states coded after every pair; one batch."""
        ids, positions = associations(self.live.vocab_size, TURNS, BATCH, seed=self.seed)
        cache: Any = None
        for piece in ids[:, : 2 * TURNS].tensor_split(TURNS, dim=1):
            _, cache = self.live.forward_with_cache(piece, cache)
            if code is not None:
                recode(cache, self.live.checkpoint, code, metrics)
        logits, _ = self.live.forward_with_cache(ids[:, 2 * TURNS :], cache, keep=2 * TURNS)
        shares = recalled_share(ids, positions, logits[:, positions - 2 * TURNS])
        return 100 * shares.double()

    def exact(self) -> tuple[Tensor, Tensor]:
        """Log-probabilities and recall without a copy."""
        read = self.known("exact text", lambda: self.read_text(None, None)[0])
        return read, self.known("exact recall", partial(self.recall, None, None, PAIRS))

    def frontier(self, code: Code, metric: str) -> Row:
        """Bytes and losses of one code."""
        metrics = self.grams.metrics(DEFAULT if metric == VALUES else metric)
        self.weights_values = metric == VALUES
        exact, exact_recall = self.exact()
        read, copies = self.read_text(code, metrics)
        float32 = sum(x.float32_bytes for x in copies)
        return {
            "share": sum(x.state_bytes for x in copies) / float32,
            "convolution": sum(x.convolution_bytes for x in copies) / float32,
            "rank": mean_rank(copies),
            "worst": max(
                (x.worst_error for x in copies if x.worst_error is not None), default=None
            ),
            **self.text_changes(exact, read),
            "exact recall": float(exact_recall.mean()),
            f"recall {PAIRS}": change(exact_recall, self.recall(code, metrics, PAIRS)),
        }

    def turns(self, code: Code, metric: str) -> Row:
        """NLL in the first and last eight of 32 turns, and recall with a copy after each pair."""
        metrics = self.grams.metrics(metric)
        exact = self.known("turns", partial(self.turn_nll, None, None))
        nll = self.turn_nll(code, metrics)
        recall = self.known("turn recall", partial(self.turn_recall, None, None))
        return {
            "first turns": change(exact[:, :8].mean(1), nll[:, :8].mean(1)),
            "last turns": change(exact[:, -8:].mean(1), nll[:, -8:].mean(1)),
            "recall 32": change(recall, self.turn_recall(code, metrics)),
        }

    def turn_nll(self, code: Code | None, metrics: Metrics | None) -> Tensor:
        """NLL [sequences, turns], with states coded after every turn."""
        cache, turns = None, list[Tensor]()
        for turn in self.long.tensor_split(TURNS, dim=1):
            logits, cache = self.live.forward_with_cache(turn, cache, keep=TURN_TOKENS)
            losses = functional.cross_entropy(
                logits[:, :-1].mT.float(), turn[:, 1:], reduction="none"
            )
            turns.append(losses.mean(1).double())
            if code is not None:
                recode(cache, self.live.checkpoint, code, metrics)
        return torch.stack(turns, 1)

    def lengths(self, code: Code, metric: str) -> Row:
        """Share and rank after more and more tokens."""
        metrics, row, cache, read = self.grams.metrics(metric), Row(), None, 0
        for length in (64, 128, 256, 512, 1024):
            _, cache = self.live.forward_with_cache(self.long[:4, read:length], cache)
            copies, read = recode(copy.deepcopy(cache), self.live.checkpoint, code, metrics), length
            row[str(length)] = [copies.share, mean_rank([copies])]
        return row

    def known(self, name: str, run: Callable[[], Any]) -> Any:
        """What does not depend on a code, computed once."""
        if name not in self.memory:
            self.memory[name] = run()
        return self.memory[name]


def batches(ids: Tensor) -> list[Tensor]:
    return [ids[first : first + BATCH] for first in range(0, len(ids), BATCH)]


def mean_rank(copies: list[Copies]) -> float | None:
    ranks = [rank.mean() for x in copies for rank in x.ranks.values()]
    return float(torch.stack(ranks).mean()) if ranks else None


def change(before: Tensor, after: Tensor) -> list[float]:
    """The mean change, and both ends of its interval."""
    interval = difference_interval([Pairs(before, after)])
    return [float(f"{x:.4g}") for x in (interval.estimate, interval.low, interval.high)]


def cases() -> Iterator[tuple[str, Code, str]]:
    """Part, code and metric of every line, the most telling ones first."""
    for tolerance in (0.05, 0.1):
        for metric in ("none", *METRICS, VALUES):
            yield "frontier", tolerance, metric
    for tolerance in (0.02, 0.2):
        for metric in ("none", "query and key"):
            yield "frontier", tolerance, metric
    for name in ("int4", "int5", "int8", "bfloat16"):
        yield "frontier", name, "none"
    for code, metric in ((0.05, DEFAULT), (0.05, "none"), ("int8", "none"), ("int4", "none")):
        yield "turns", code, metric
    yield "turns", 0.02, DEFAULT
    yield "lengths", 0.05, DEFAULT


def study_options(docstring: str | None) -> argparse.Namespace:
    defaults: dict[str, Any] = {"name": None, "seed": 0, "sequences": 16, "tokens": 8192}
    paths = ("model", "text", "test", "work", "results")
    return study_parser(docstring, *paths, **defaults, minutes=240.0).parse_args()


def main() -> None:
    study = Study(study_options(__doc__))
    for part, code, metric in cases():
        study.measure(part, code, metric, partial(getattr(study, part), code, metric))


if __name__ == "__main__":
    main()
