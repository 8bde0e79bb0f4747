"""What does a cut cost? Every method, width and score on one checkpoint, without recovery.

    python studies/methods.py run MODEL --text train.jsonl --test wiki.valid.raw \\
        [--calibration text half recall]
    python studies/methods.py page

Calibrates once per kind of calibration data and adds a line per cut to the results. Lines that
exist, with as many windows, are not measured again. The test text is encoded whole and cut into
windows of 256 tokens, each from an empty state. Recall is MQAR (see mqar.py), for models with a
vocabulary of at least 252.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib.pyplot as plt
import torch

import mqar
import statetrim as st
from evaluator import Evaluator
from runner import Row, Rows, by_model, fill, places, read_rows, start, study_parser, table
from statetrim.storage.text import Sequences

STYLES = {  # Okabe and Ito's colours, one of Tol's, and a marker each
    "rand": ("#000000", "x"),
    "l1": ("#999999", "v"),
    "s_wanda": ("#E69F00", "^"),
    "grad": ("#0072B2", "s"),
    "drrqr": ("#D55E00", "o"),
    "drrqr normalized": ("#CC79A7", "D"),
    "energy": ("#56B4E9", "P"),
    "product": ("#009E73", "*"),
    "ghost": ("#882255", "h"),
}
"""Style in the picture, by method."""
CALIBRATED = ("s_wanda", "grad", "drrqr", "energy", "product", "ghost")
PAIRS = (8, 16, 32, 63)
FIRST = 128  # windows that every case was measured on
SEQUENCES, LENGTH = 128, 512  # of calibration
SEEDS = 3  # of random cuts
KEEP = (0.75, 0.5, 0.25)
SHOWN = (0.5, 0.25)  # in the tables; the picture has all
IDENTITY = ("calibration", "method", "score", "keep", "seed")
PLAIN = {"calibration": "text", "score": "qk"}


def cases(options: argparse.Namespace) -> list[Row]:
    """The keys that identify each line of the results, in the order of measuring."""
    name = options.name or options.model.resolve().name
    rows: list[Row] = [{"model": name, "method": "none", "keep": 1.0}]
    for calibration in options.calibration:
        for score in options.scores:
            for keep in options.keep:
                for method in options.methods:
                    row = {"model": name, "calibration": calibration, "method": method}
                    if method == "ghost" and score != "qk":  # it has no other
                        continue
                    if method != "rand":
                        rows.append(row | {"score": score, "keep": keep, "seed": 0})
                    elif score == "qk" and calibration == "text":
                        seeds = range(SEEDS)
                        rows += [row | {"score": None, "keep": keep, "seed": s} for s in seeds]
    return rows


def recall_sequences(vocab: int, tokens: int) -> Sequences:
    """Recall sequences with the most pairs, drawn with another seed than the test sequences."""
    pairs = max(PAIRS)
    generator = torch.Generator().manual_seed(99)
    ids = mqar.batch(vocab, pairs, tokens // (4 * pairs), generator)[0].int()
    digest = hashlib.sha256(ids.numpy().tobytes()).hexdigest()
    return Sequences(ids, {"text": f"MQAR, {pairs} pairs", "digest": digest})


def collect_statistics(model: st.Checkpoint, text: Path, kind: str) -> st.Statistics:
    """Statistics of `SEQUENCES` x `LENGTH` tokens of text, of recall, or of half of each."""
    tokens = SEQUENCES * LENGTH // (2 if kind == "half" else 1)
    sources: list[Path | Sequences] = []
    if kind != "recall":
        sources.append(text)
    if kind != "text":
        sources.append(recall_sequences(model.config["vocab_size"], tokens))
    first, *others = (
        st.calibrate(model, source, tokens=tokens, length=LENGTH, methods=CALIBRATED, recall=0.0)
        for source in sources
    )
    layers = {i: sum((x.layers[i] for x in others), start=sums) for i, sums in first.layers.items()}
    return st.Statistics(layers, first.lineage)


class MethodsEvaluator(Evaluator):
    def __init__(self, model: st.Checkpoint, test: Path, windows: int) -> None:
        self.windows = windows
        pairs = PAIRS if model.config["vocab_size"] >= 4 * max(PAIRS) else ()
        super().__init__(model, test, windows, list(pairs))

    def measure(self, live: Any) -> Row:
        """Means over predicted tokens of NLL (all windows, and the first ones) and of KL from the
        original to `live`, and recall accuracy by the number of pairs."""
        samples = self.original_samples if live is self.original else self.samples(live)
        means = {"nll": samples["nll"].mean(), "nll_first": samples["nll"][:FIRST].mean()}
        means |= {"kl": samples["kl"].mean()}
        rounded = {name: round(float(value), 5) for name, value in means.items()}
        recall = {str(n): round(float(samples[f"recall {n}"].mean()), 4) for n in self.pairs}
        return {**rounded, "recall": recall, "windows": self.windows}


class Study:
    """One model, its statistics by kind of calibration data, and figures by the channels kept."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.model, self.text = st.open(options.model), options.text
        self.evaluator = MethodsEvaluator(self.model, options.test, options.windows)
        self.statistics = dict[str, st.Statistics]()
        self.figures = dict[str, Row]()

    def measure(self, row: Row) -> Row:
        """The figures of a row; methods that keep the same channels are measured once."""
        if row["method"] == "none":
            return self.evaluator.measure(self.evaluator.original)
        method, *normalized = row["method"].split()
        options: Row = {"normalized": True} if normalized else {}
        if row["score"] is not None and method != "ghost":
            options["score"] = row["score"]
        statistics = None
        if method in CALIBRATED:
            kind = row["calibration"]
            if kind not in self.statistics:
                self.statistics[kind] = collect_statistics(self.model, self.text, kind)
            statistics = self.statistics[kind]
        to = f"{row['keep']:.1%}x100%"
        plan = st.select(
            self.model, method, to, seed=row["seed"], statistics=statistics, method_options=options
        )
        channels = json.dumps([kept.tolist() for kept in plan.axes["key"].kept.values()])
        if channels not in self.figures:
            with tempfile.TemporaryDirectory() as directory:
                small = st.prune(self.model, plan, out=Path(directory) / "small")
                self.figures[channels] = self.evaluator.measure(st.load(small))
        swaps = sum(sum(note.get("swaps", [])) for note in plan.axes["key"].notes.values())
        return self.figures[channels] | ({"swaps": swaps} if method == "drrqr" else {})


def run() -> None:
    parser = study_parser(
        __doc__, "model", "text", "test", results="results/methods.jsonl", name=None,
        keep=list(KEEP), windows=320, threads=1,
    )  # fmt: skip
    parser.add_argument("--methods", nargs="+", choices=STYLES, default=list(STYLES))
    parser.add_argument("--scores", nargs="+", choices=["qk", "q", "k"], default=["qk", "q", "k"])
    kinds = ["text", "half", "recall"]
    parser.add_argument("--calibration", nargs="+", choices=kinds, default=["text"])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = Rows(options.results)
    rows.rows = [row for row in rows.rows if row["windows"] >= options.windows]
    rows.measure_missing(cases(options), Study(options).measure)


class Results:
    """The results of one model; of equal cases the one with the most windows counts."""

    def __init__(self, rows: list[Row]) -> None:
        rows = sorted(rows, key=lambda row: int(row["windows"]))
        self.rows = list({tuple(map(row.get, IDENTITY)): row for row in rows}.values())
        self.original = next(row for row in rows if row["method"] == "none")

    def select(self, **wanted: Any) -> list[Row]:
        if wanted["method"] == "rand":
            wanted.pop("score", None)
        return [row for row in self.rows if wanted.items() <= row.items()]

    def mean(self, figure: str, **wanted: Any) -> float:
        rows = self.select(**wanted)
        return fmean(self._figure(row, figure) for row in rows) if rows else math.nan

    def _figure(self, row: Row, figure: str) -> float:
        if figure.startswith("rise"):
            name = figure.replace("rise", "nll")
            return float(row[name] - self.original[name])
        return float(row["recall"][figure] if figure.isdigit() else row[figure])


def show(value: float, digits: int = 3) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def methods_table(results: Results) -> str:
    shares = " / ".join(f"{keep * 100:.0f} %" for keep in SHOWN)
    rows = [["original", "", show(results.mean("32", method="none"), 2)]]
    for method in STYLES:
        kept = [{**PLAIN, "method": method, "keep": keep} for keep in SHOWN]
        if all(results.select(**case) for case in kept):  # else not measured on this model
            rises, recalled = (
                "/".join(show(results.mean(figure, **case), digits) for case in kept)
                for figure, digits in (("rise_first", 3), ("32", 2))
            )
            rows.append([method, rises, recalled])
    return table(["method", f"NLL increase, keep {shares}", f"recall at 32 pairs: {shares}"], rows)


def scores_table(results: Results) -> str:
    """With half of the keys."""
    rows = []
    for method in STYLES:
        if method not in ("rand", "ghost"):
            case = {"method": method, "calibration": "text", "keep": 0.5}
            cells = [method]
            for figure in ("rise_first", "32"):
                means = (results.mean(figure, **case, score=s) for s in ("qk", "q", "k"))
                cells.append("/".join(map(show, means)))
            rows.append(cells)
    return table(["method", "NLL increase: qk / q / k", "recall at 32 pairs: qk / q / k"], rows)


def calibration_table(results: Results) -> str:
    kinds = ("text", "half", "recall")
    columns = ("NLL increase", "recall at 32 pairs")
    rows = []
    for method in ("drrqr", "grad", "energy", "product"):
        for keep in (0.5, 0.25):
            case = {"score": "qk", "method": method, "keep": keep}
            cells = [method, f"{keep * 100:.0f} %"]
            for figure, digits in (("rise_first", 3), ("32", 2)):
                means = (results.mean(figure, **case, calibration=kind) for kind in kinds)
                cells.append("/".join(show(value, digits) for value in means))
            rows.append(cells)
    return table(["method", "keep", *(f"{name}: {' / '.join(kinds)}" for name in columns)], rows)


TABLES = {
    "methods": methods_table,
    "scores": scores_table,
    "calibration": calibration_table,
}


def draw(models: dict[str, Results], path: Path) -> None:
    plt.rcParams["figure.constrained_layout.use"] = True
    size = (3.2 * len(models), 6.6)
    figure, axes = plt.subplots(2, len(models), figsize=size, squeeze=False, sharex=True)
    for column, (name, results) in enumerate(models.items()):
        loss, recall = axes[:, column]
        for method, (colour, marker) in STYLES.items():
            cases = [{**PLAIN, "method": method, "keep": keep} for keep in KEEP]
            for axis, quantity in ((loss, "rise_first"), (recall, "32")):
                values = [results.mean(quantity, **case) for case in cases]
                kept_percent = [100 * keep for keep in KEEP]
                axis.plot(
                    kept_percent, values, color=colour, marker=marker, markersize=7, label=method
                )
        recall.axhline(results.original["recall"]["32"], color="black", linestyle=":")
        recall.annotate("original", (40, results.original["recall"]["32"]), va="bottom")
        loss.set(title=name, yscale="log")
        recall.set(xlabel="channels kept (%)", xticks=[75, 50, 25], xlim=(79, 21), ylim=(0, 1.08))
        loss.grid(alpha=0.3), recall.grid(alpha=0.3)
    axes[0, 0].set_ylabel("increase of NLL per token (nats)")
    axes[1, 0].set_ylabel("recall accuracy, 32 pairs")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path, dpi=130)


def page(results: Path) -> None:
    document, rows = results / "methods.md", read_rows(results / "methods.jsonl")
    models = {name: Results(own) for name, own in by_model(rows).items()}
    contents = {}
    for kind, make_table in TABLES.items():
        for name in places(document, kind):
            contents[f"{kind} {name}"] = make_table(models[name])
    fill(document, contents)
    draw(models, results / "methods.png")


if __name__ == "__main__":
    start(page, run=run)
