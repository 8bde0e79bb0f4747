"""Stored states by code: bytes against loss, over turns, by metric and by length, on one model.

    python studies/snapshots.py run MODEL --text train.jsonl --test wiki.test.txt --work FOLDER
    python studies/snapshots.py cuts MODEL --text train.jsonl --test wiki.test.txt --work FOLDER
    python studies/snapshots.py page

The metric is calibrated on `--text`. A model reads a prefix of 256 tokens of the test text, its
states are coded and decoded, and it reads on: the change of NLL over the next 127 tokens, the KL
divergence from the model without a copy, and the change of recall (MQAR: the pairs are the prefix,
the questions the rest). Over turns, states are coded after every turn. Intervals are 95 %, paired
by sequence. A seed takes other calibration text, other test text and other recall sequences.
`--minutes` ends a run early, and the next one resumes it. `cuts` measures a cut, a code, or both:
losses are against the original without a copy, shares are of its float32 bytes.
"""

from __future__ import annotations

import argparse
import copy
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
from precision import SHAPES, make_cut
from runner import Row, Rows, fill, read_rows, start, study_parser, table
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
PLAIN = "float32"
CUT_CODES: tuple[tuple[Code, str], ...] = (
    (PLAIN, "none"), ("int8", "none"), ("int4", "none"),
    (0.05, "none"), (0.1, "none"), (0.05, DEFAULT), (0.1, DEFAULT),
)  # fmt: skip


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
        self.live, self.results, self.seed = load_live(model), Rows(options.results), options.seed
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
        if not self.results.has(key) and time.monotonic() < self.ends:
            with torch.inference_mode():
                self.results.add(key | run())

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
            "nll": change_of(*nll),
            "kl": change_of(torch.zeros(len(kl)), kl.mean(1)),
            "kl, first 16": change_of(torch.zeros(len(kl)), kl[:, :16].mean(1)),
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
            f"recall {PAIRS}": change_of(exact_recall, self.recall(code, metrics, PAIRS)),
        }

    def turns(self, code: Code, metric: str) -> Row:
        """NLL in the first and last eight of 32 turns, and recall with a copy after each pair."""
        metrics = self.grams.metrics(metric)
        exact = self.known("turns", partial(self.turn_nll, None, None))
        nll = self.turn_nll(code, metrics)
        recall = self.known("turn recall", partial(self.turn_recall, None, None))
        return {
            "first turns": change_of(exact[:, :8].mean(1), nll[:, :8].mean(1)),
            "last turns": change_of(exact[:, -8:].mean(1), nll[:, -8:].mean(1)),
            "recall 32": change_of(recall, self.turn_recall(code, metrics)),
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


def change_of(before: Tensor, after: Tensor) -> list[float]:
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


def loss(original: Study, cut: Study, code: Code, metric: str) -> Row:
    """Bytes of a cut's coded states, and what cut and code lose together."""
    kept, metrics = None if code == PLAIN else code, cut.grams.metrics(metric)
    exact, exact_recall = original.exact()
    read, copies = cut.read_text(kept, metrics)
    numbers = [
        study.live.checkpoint.geometry.num_v_heads * sum(k * v for k, v in shapes.values())
        for study in (original, cut)
        for shapes in [study.live.checkpoint.geometry.shapes]
    ]
    share = sum(x.share for x in copies) / len(copies) if copies else 1.0
    return {
        "of": original.name,
        "share": share * numbers[1] / numbers[0],
        **cut.text_changes(exact, read),
        f"recall {PAIRS}": change_of(exact_recall, cut.recall(kept, metrics, PAIRS)),
    }


def study_options() -> argparse.Namespace:
    return study_parser(
        __doc__, "model", "text", "test", "work", results="results/snapshots.jsonl", name=None,
        seed=0, sequences=16, tokens=8192, minutes=240.0,
    ).parse_args()  # fmt: skip


def run() -> None:
    study = Study(study_options())
    for part, code, metric in cases():
        study.measure(part, code, metric, partial(getattr(study, part), code, metric))


def run_cuts() -> None:
    """Cuts of precision.py, refitted and without recovery."""
    options = study_options()
    model, original = st.open(options.model), Study(options)
    for shape in [name for name in SHAPES if name != "full"]:
        path = make_cut(model, shape, options.text, options.work).path
        changed = {"model": path, "name": path.name}
        cut = Study(argparse.Namespace(**vars(options) | changed))
        for code, metric in CUT_CODES:
            cut.measure("cut", code, metric, partial(loss, original, cut, code, metric))


Cell = Callable[[list[Row]], str]
LENGTHS = ("64", "128", "256", "512", "1024")


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def change(figure: str, digits: int) -> Cell:
    """The mean change over seeds, and half of the interval that all seeds together give."""

    def cell(rows: list[Row]) -> str:
        halves = [(row[figure][2] - row[figure][1]) / 2 for row in rows]
        half = sum(x * x for x in halves) ** 0.5 / len(halves)
        return f"{mean([row[figure][0] for row in rows]):+.{digits}f} ± {half:.{digits}f}"

    return cell


def divergence(rows: list[Row]) -> str:
    """KL in thousandths, to two digits."""
    low, middle, high = (
        float(f"{1000 * mean([row['kl'][n] for row in rows]):.2g}") for n in (1, 0, 2)
    )
    return f"{middle:g} ({low:g}, {high:g})"


def share(figure: str) -> Cell:
    return lambda rows: f"{100 * mean([row[figure] for row in rows]):.1f} %"


def share_at(length: str) -> Cell:
    return lambda rows: f"{100 * mean([row[length][0] for row in rows]):.1f} %"


def code_name(row: Row) -> str:
    """ "int8", "within 0.05", or "within 0.05, metric"."""
    if isinstance(row["code"], str):
        return row["code"]
    return f"within {row['code']}" + (", metric" if row["metric"] != "none" else "")


CODE: dict[str, Cell] = {
    "model": lambda rows: rows[0]["model"],
    "code": lambda rows: code_name(rows[0]),
}
BYTES: dict[str, Cell] = {"states": share("share")}
OF_ORIGINAL: dict[str, Cell] = {"states, of the original's": share("share")}
KL: dict[str, Cell] = {"KL, 0.001 nats": divergence}
RECALL: dict[str, Cell] = {"recall, points": change("recall 32", 1)}
LOSSES = KL | {"NLL, nats": change("nll", 4)} | RECALL
SPEECH = KL | {"frames of another class, %": change("other class", 2)}
SEEDS: dict[str, Cell] = {"seeds": lambda rows: str(len(rows))}
METRIC: dict[str, Cell] = {
    "model": CODE["model"],
    "metric": lambda rows: rows[0]["metric"],
    "states": BYTES["states"],
}
TURN_LOSSES = {
    "NLL, first 8 turns": change("first turns", 4),
    "NLL, last 8": change("last turns", 4),
} | RECALL


def by_code(row: Row) -> bool:
    """Without a metric, or in the default one, which has no keys for Mamba-2."""
    return row["metric"] in ("none", "query" if row["part"] == "audio" else DEFAULT)


def is_shown(row: Row) -> bool:
    """One of the codes that the page speaks of."""
    shown = ("int8", "int5", "int4", 0.05) + ((0.1, 0.2) if row["metric"] == "none" else (0.02,))
    return by_code(row) and row["code"] in shown


def by_metric(row: Row) -> bool:
    """Those that the page speaks of, at one tolerance."""
    return bool(row["code"] == 0.05 and row["metric"] != "read-out and key")


def of_cuts(row: Row) -> bool:
    """Without a code, and ours; int8 copies lose what the cut loses."""
    return row["code"] in (PLAIN, 0.05)


TABLES: dict[str, tuple[str, Callable[[Row], bool], dict[str, Cell]]] = {
    "codes": ("frontier", is_shown, CODE | BYTES | LOSSES),
    "metrics": ("frontier", by_metric, METRIC | KL | RECALL),
    "turns": ("turns", by_code, CODE | TURN_LOSSES | SEEDS),
    "lengths": ("lengths", by_code, CODE | {name: share_at(name) for name in LENGTHS}),
    "speech": ("audio", is_shown, CODE | BYTES | SPEECH),
    "speech metrics": ("audio", by_metric, METRIC | SPEECH),
    "cuts": ("cut", of_cuts, CODE | OF_ORIGINAL | KL | RECALL),
}  # fmt: skip


def seeds_table(rows: list[Row], columns: dict[str, Cell]) -> str:
    """One line for each model, code and metric, the largest copies first; cuts by original."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["model"], str(row["code"]), row["metric"]), []).append(row)

    def order(seeds: list[Row]) -> tuple[str, float]:
        model = seeds[0]["of" if "of" in seeds[0] else "model"]
        return model, -mean([row.get("share", 0.0) for row in seeds])

    lines = [
        [cell(seeds) for cell in columns.values()] for seeds in sorted(groups.values(), key=order)
    ]
    return table(list(columns), lines, left=len(columns))


def page(results: Path) -> None:
    rows, contents = read_rows(results / "snapshots.jsonl"), {}
    for place, (parts, chosen, columns) in TABLES.items():
        shown = [row for row in rows if row["part"] in parts.split() and chosen(row)]
        contents[place] = seeds_table(shown, columns)
    fill(results / "snapshots.md", contents)


if __name__ == "__main__":
    start(page, run=run, cuts=run_cuts)
