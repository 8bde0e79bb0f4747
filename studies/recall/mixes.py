"""Which mix of sources is best for selection and refit? One JSON line per cut.

    python studies/recall/mixes.py MODEL --text train.jsonl --test wiki.valid.raw

Cuts are masked in the loaded model. Cuts that the results already hold are not measured again.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

import statetrim as st
from evidence import SourceStatistics, choose_keys, choose_values
from judge import Judge, Row, Rows, study_parser
from masking import Cut, Masked
from refitting import Moments, Replay, error, refit
from sources import make_source
from statetrim.runtime.corpus import Corpus
from statetrim.runtime.loading import load_live

SOURCES = ("text", "recall", "random", "echo", "any")
MIXES = {
    "text": {"text": 1.0},
    "recall .25": {"text": 0.75, "recall": 0.25},
    "recall .5": {"text": 0.5, "recall": 0.5},
    "recall .75": {"text": 0.25, "recall": 0.75},
    "recall 1": {"recall": 1.0},
    "random .5": {"text": 0.5, "random": 0.5},
    "random .25": {"text": 0.75, "random": 0.25},
    "recall .25 random .25": {"text": 0.5, "recall": 0.25, "random": 0.25},
    "any .5": {"text": 0.5, "any": 0.5},
    "echo .5": {"text": 0.5, "echo": 0.5},
}
SHAPES = {
    "1/2 keys": (32, 64),
    "1/2 balanced": (45, 45),
    "1/2 values": (64, 32),
    "1/4 keys": (16, 64),
    "1/4 balanced": (32, 32),
    "1/4 values": (64, 16),
}

EXPERIMENT: dict[str, Any] = {
    "windows": 48, "rows": 32, "tokens": 2**15, "refit_tokens": 2**13,
    "work": tempfile.gettempdir(),
}  # fmt: skip
"""Options of an `Experiment`, with their defaults."""


def cases(options: argparse.Namespace) -> list[Row]:
    """The fields that identify a result line, in the order of measuring."""
    rows: list[Row] = []
    base = {"model": options.model.name, "seed": options.seed, "windows": options.windows}
    for shape in options.shapes:
        methods = options.methods if SHAPES[shape][0] < 64 else ["none"]
        for mix in options.mixes:
            for method in methods:
                for rule in options.rules:
                    for fit in options.refits:
                        fit = mix if fit == "mix" else fit
                        row = {"shape": shape, "method": method, "mix": mix, "rule": rule}
                        rows.append(base | row | {"refit": fit})
    return rows


class Experiment:
    """Sources, statistics and moments of one model, computed when first needed."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.checkpoint = st.open(options.model)
        self.corpus = Corpus(options.text, self.checkpoint)
        live = load_live(self.checkpoint)
        live.module.requires_grad_(False)
        self.model = Masked(live)
        self.judge = Judge(
            self.model, options.test, self.corpus.tokenizer, options.windows, options.rows
        )
        self.statistics: dict[str, SourceStatistics] = {}
        self.results: dict[tuple[str, str], Row] = {}
        self.replays: dict[str, Replay] = {}
        self.last_key, self.last_moments = "", dict[str, dict[int, Moments]]()

    @staticmethod
    def layers_of(model: Path) -> tuple[int, ...]:
        return st.open(model).geometry.layers

    def source(self, name: str, tokens: int) -> Any:
        vocabulary = self.model.live.vocab_size
        return make_source(name, self.corpus, vocabulary, tokens, self.options.seed)

    def collect(self, names: Any) -> None:
        for name in names:
            if name not in self.statistics:
                source = self.source(name, self.options.tokens)
                backward = bool({"grad", "fisher"} & set(getattr(self.options, "methods", [])))
                kind = "backward" if backward else "forward"
                file_name = f"{self.options.model.name}-{name}-{self.options.seed}-{kind}.pt"
                cache = self.options.work / file_name
                self.statistics[name] = SourceStatistics(
                    self.checkpoint, self.model, source, cache, backward
                )

    def cut(self, row: Row) -> Cut:
        keys, values = SHAPES[row["shape"]]
        shares, args = MIXES[row["mix"]], (row["rule"], MIXES[row["mix"]])
        self.collect(shares)
        cut = Cut()
        if keys < self.checkpoint.geometry.head_k_dim:
            cut.keys = choose_keys(self.checkpoint, self.statistics, row["method"], *args, keys)
        if values < self.checkpoint.geometry.head_v_dim:
            cut.values = choose_values(
                self.checkpoint, self.statistics, "readout_greedy", *args, values
            )
        return cut

    def moments(self, cut: Cut, key: str, names: Any) -> dict[str, dict[int, Moments]]:
        """Moments by source; only those of the last cut (`key`) are cached."""
        if key != self.last_key:
            self.last_key, self.last_moments = key, {}
        for name in names:
            if name not in self.replays:
                source = self.source(name, self.options.refit_tokens)
                self.replays[name] = Replay(self.model, source)
            if name not in self.last_moments:
                self.last_moments[name] = self.replays[name].moments(cut)
        return self.last_moments

    def measured(self, row: Row) -> Row:
        if row["shape"] == "original":
            return dict(self.judge.figures(None))
        cut = self.cut(row)
        tables = [{i: t.tolist() for i, t in side.items()} for side in (cut.keys, cut.values)]
        key = json.dumps(tables)
        if (key, row["refit"]) not in self.results:
            errors = {}
            if row["refit"] != "none":
                shares = MIXES[row["refit"]]
                moments = self.moments(cut, key, sorted({*shares, "text", "recall"}))
                cut.weights = refit(moments, shares)
                errors = {
                    f"error {name}": [
                        round(error(weight, moments[name][layer]), 5)
                        for layer, weight in cut.weights.items()
                    ]
                    for name in ("text", "recall")
                }
            self.results[key, row["refit"]] = self.judge.figures(cut) | errors
        return self.results[key, row["refit"]]


def main() -> None:
    parser = study_parser(
        __doc__, "model", "text", "test", results="results/recall/mixes.jsonl", methods=["product",
        "drrqr", "grad"], rules=["scores"], refits=["none", "mix"], **EXPERIMENT, seed=0,
    )  # fmt: skip
    parser.add_argument("--mixes", nargs="+", choices=MIXES, default=list(MIXES))
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    options = parser.parse_args()
    torch.set_num_threads(1)
    base = {"model": options.model.name, "seed": options.seed, "windows": options.windows}
    rows, results = [base | {"shape": "original"}, *cases(options)], Rows(options.results)
    if not all(map(results.has, rows)):
        results.measure_missing(rows, Experiment(options).measured)


if __name__ == "__main__":
    main()
