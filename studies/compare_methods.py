"""What does a cut cost? Every method, width and score on one checkpoint, without recovery.

    python studies/compare_methods.py MODEL --text train.jsonl --test wiki.valid.raw \\
        --results results/methods.jsonl [--calibration text half recall]

Calibrates once per kind of calibration data, prunes into a temporary directory and adds a line per
cut to the results. Lines that exist, with as many windows, are not measured again. The test text is
encoded whole and cut into windows of 256 tokens, each from an empty state. Recall is MQAR (see
mqar.py), for models with a vocabulary of at least 252. Logits must be `lm_head(hidden)`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor
from torch.nn import functional

import mqar
import statetrim as st
from arguments import study_parser
from statetrim.runtime.loading import load_tokenizer
from statetrim.storage.text import Sequences

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "rand": ("rand", {}),
    "l1": ("l1", {}),
    "s_wanda": ("s_wanda", {}),
    "grad": ("grad", {}),
    "drrqr": ("drrqr", {}),
    "drrqr normalized": ("drrqr", {"normalized": True}),
    "energy": ("energy", {}),
    "product": ("product", {}),
    "ghost": ("ghost", {}),
}
CALIBRATED = ("s_wanda", "grad", "drrqr", "energy", "product", "ghost")
PAIRS = (8, 16, 32, 63)
WINDOW, FIRST, BATCH = 256, 128, 8
SEQUENCES, LENGTH = 128, 512
SEEDS = 3  # of random cuts

Row = dict[str, Any]


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
                    if METHODS[method][0] != "rand":
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
    return st.merge(
        st.calibrate(model, source, tokens=tokens, length=LENGTH, methods=CALIBRATED, recall=0.0)
        for source in sources
    )


class Evaluator:
    """Measures models and the original on the same windows and the same recall sequences."""

    def __init__(self, model: st.Checkpoint, test: Path, count: int) -> None:
        ids = load_tokenizer(model)(test.read_text(), add_special_tokens=False)["input_ids"]
        windows = torch.tensor(ids[: len(ids) // WINDOW * WINDOW]).reshape(-1, WINDOW)[:count]
        self.batches = [windows[i : i + BATCH] for i in range(0, len(windows), BATCH)]
        self.windows, self.original = count, st.load(model)
        with torch.inference_mode():
            self.hidden = [hidden(self.original, batch) for batch in self.batches]

    @torch.inference_mode()
    def measure(self, live: Any) -> Row:
        """Means over predicted tokens of NLL (all windows, and the first ones) and of KL from the
        original to `live`, and recall accuracy by the number of pairs."""
        nlls, kls = [], []
        for batch, original in zip(self.batches, self.hidden, strict=True):
            cut_log_p = log_p(live, original if live is self.original else hidden(live, batch))
            original_log_p = log_p(self.original, original)
            nlls.append(functional.nll_loss(cut_log_p.flatten(0, 1), batch[:, 1:].flatten()))
            kls.append((original_log_p.exp() * (original_log_p - cut_log_p)).sum(-1).mean())
        nll, kl = torch.stack(nlls).double(), torch.stack(kls).double()
        recall = {
            str(pairs): round(mqar.accuracy(live, pairs, rows=32), 4)
            for pairs in PAIRS
            if live.config.vocab_size >= 4 * max(PAIRS)
        }
        first = nll[: FIRST // BATCH].mean()
        figures = {"nll": nll.mean(), "nll_first": first, "kl": kl.mean()}
        rounded = {name: round(float(value), 5) for name, value in figures.items()}
        return {**rounded, "recall": recall, "windows": self.windows}


def hidden(live: Any, ids: Tensor) -> Tensor:
    states: Tensor = live.model(input_ids=ids, use_cache=False).last_hidden_state
    return states[:, :-1]


def log_p(live: Any, states: Tensor) -> Tensor:
    logits: Tensor = live.lm_head(states)
    return logits.float().log_softmax(-1)


def measure_rows(
    model: st.Checkpoint, rows: list[Row], text: Path, evaluator: Evaluator
) -> Iterator[Row]:
    """Each row with its figures; methods that keep the same channels are measured once."""
    statistics_by_kind, figures_by_channels = dict[str, st.Statistics](), dict[str, Row]()
    for row in rows:
        if row["method"] == "none":
            yield row | evaluator.measure(evaluator.original)
            continue
        method, method_options = METHODS[row["method"]]
        if row["score"] is not None and method != "ghost":
            method_options = method_options | {"score": row["score"]}
        if method in CALIBRATED and row["calibration"] not in statistics_by_kind:
            statistics_by_kind[row["calibration"]] = collect_statistics(
                model, text, row["calibration"]
            )
        statistics = statistics_by_kind[row["calibration"]] if method in CALIBRATED else None
        plan = st.select(
            model,
            method,
            f"{row['keep']:.1%}x100%",
            seed=row["seed"],
            statistics=statistics,
            **method_options,
        )
        channels = json.dumps([kept.tolist() for kept in plan.kept.values()])
        if channels not in figures_by_channels:
            with tempfile.TemporaryDirectory() as directory:
                small = st.prune(model, plan, out=Path(directory) / "small")
                figures_by_channels[channels] = evaluator.measure(st.load(small))
        swaps = sum(sum(note.get("swaps", [])) for note in plan.notes.values())
        yield row | figures_by_channels[channels] | ({"swaps": swaps} if method == "drrqr" else {})


def main() -> None:
    parser = study_parser(
        __doc__, "model", "text", "test", results="results/methods.jsonl", name=None, keep=[0.75,
        0.5, 0.25], windows=320, threads=1,
    )  # fmt: skip
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--scores", nargs="+", choices=["qk", "q", "k"], default=["qk", "q", "k"])
    kinds = ["text", "half", "recall"]
    parser.add_argument("--calibration", nargs="+", choices=kinds, default=["text"])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    done: list[Row] = []
    if options.results.exists():
        done = [json.loads(line) for line in options.results.read_text().splitlines()]
    rows = cases(options)
    enough = [old for old in done if old["windows"] >= options.windows]
    missing = [row for row in rows if not any(row.items() <= old.items() for old in enough)]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with (
        options.results.open("a") as results,
        Progress(*columns, TimeRemainingColumn(), disable=not sys.stdout.isatty()) as bar,
    ):
        task = bar.add_task("methods", total=len(rows), completed=len(rows) - len(missing))
        if missing:
            model = st.open(options.model)
            evaluator = Evaluator(model, options.test, options.windows)
            for row in measure_rows(model, missing, options.text, evaluator):
                results.write(json.dumps(row) + "\n")
                results.flush()
                bar.update(task, advance=1, description=f"{row['method']} {row['keep']:.0%}")


if __name__ == "__main__":
    main()
