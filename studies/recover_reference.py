"""How much does recovery repair? Methods and widths on one checkpoint, before and after, and a
control: the original after the same recovery.

    python studies/recover_reference.py MODEL --text train.jsonl --test wiki.valid.raw \\
        --work WORK [--results results/recovery.jsonl] [--tokens 196608]

Calibrates once, prunes and recovers in WORK, and adds a line per run to the results. Runs in the
results are not repeated, and an interrupted run resumes. Recovery reads other text than calibration
(`--data text`), or half text and half recall sequences, drawn with another seed than those of the
test (`--data half`); `--data layerwise` trains one mixer at a time on the text, without a control.
NLL, KL and recall are measured as in compare_methods.py.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

import statetrim as st
from arguments import study_parser
from compare_methods import CALIBRATED, Evaluator, collect_statistics, recall_sequences
from statetrim.progress import Progress
from statetrim.runtime.corpus import Corpus
from statetrim.storage.text import Sequences

METHODS = ("rand", "l1", "s_wanda", "grad", "drrqr")
CALIBRATION_TOKENS = 128 * 512

Row = dict[str, Any]


def cases(options: argparse.Namespace) -> list[Row]:
    """The keys that identify each line of the results; the control comes first."""
    recipe = {
        "model": options.name or options.model.resolve().name,
        "tokens": options.tokens,
        "learning_rate": options.learning_rate,
        "data": options.data,
    }
    rows = []
    if options.data != "layerwise":
        rows.append({**recipe, "method": "none", "keep": 1.0})
    for keep in options.keep:
        rows += [{**recipe, "method": method, "keep": keep} for method in options.methods]
    return rows


def pruned_path(
    model: st.Checkpoint, row: Row, statistics_by_kind: dict[str, st.Statistics], options: Any
) -> Path:
    """The directory of the cut; prunes unless it exists."""
    out: Path = options.work / f"{row['model']}-{row['method']}-{row['keep']}"
    if not out.exists():
        needs_statistics = row["method"] in CALIBRATED
        if needs_statistics and not statistics_by_kind:
            statistics_by_kind["text"] = collect_statistics(model, options.text, "text")
        statistics = statistics_by_kind["text"] if needs_statistics else None
        st.prune(
            model,
            st.select(model, row["method"], f"{row['keep']:.1%}x100%", statistics=statistics),
            out,
        )
    return out


def half_recall(model: st.Checkpoint, text: Path, tokens: int) -> Sequences:
    """Alternating sequences of text and of recall, as long as the recall sequences."""
    recall = recall_sequences(model.config["vocab_size"], tokens // 2)
    count, length = recall.ids.shape
    plain = Corpus(text, model).read(
        tokens=count * length,
        length=length,
        skip=CALIBRATION_TOKENS,
    )
    ids = torch.stack([plain.ids, recall.ids], 1).flatten(0, 1)
    return Sequences(ids, {"text": "half recall", "digests": [plain.lineage, recall.lineage]})


def run(model: st.Checkpoint, row: Row, small: st.Checkpoint, options: Any) -> st.Checkpoint:
    rate = f"{row['data']}-{row['tokens']}-{row['learning_rate']:g}"
    half = row["data"] == "half"
    out = options.work / f"{row['model']}-{row['method']}-{row['keep']}-recovered-{rate}"
    last = [0.0]

    def print_progress(report: Progress) -> None:
        if time.monotonic() - last[0] > 20 or report.done == report.total:
            last[0] = time.monotonic()
            print(f"  {report.done}/{report.total} loss {report.loss:.4f}", flush=True)

    return st.recover(
        small,
        teacher=model,
        text=half_recall(model, options.text, row["tokens"]) if half else options.text,
        tokens=row["tokens"],
        length=options.length,
        skip=CALIBRATION_TOKENS,
        learning_rate=row["learning_rate"],
        control=row["method"] == "none",
        layerwise=row["data"] == "layerwise",
        save_every=20,
        out=out,
        progress=print_progress,
    )


def main() -> None:
    parser = study_parser(
        __doc__, "model", "text", "test", "work", results="results/recovery.jsonl", name=None,
        methods=list(METHODS), keep=[0.5, 0.25], tokens=48 * 16 * 256, length=256,
        learning_rate=2e-3, windows=320,
    )  # fmt: skip
    parser.add_argument("--data", choices=["text", "half", "layerwise"], default="text")
    options = parser.parse_args()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    torch.set_num_threads(1)
    options.work.mkdir(parents=True, exist_ok=True)
    done: list[Row] = []
    if options.results.exists():
        done = [json.loads(line) for line in options.results.read_text().splitlines()]
    missing = [row for row in cases(options) if not any(row.items() <= old.items() for old in done)]
    if not missing:
        return
    model, statistics_by_kind = st.open(options.model), dict[str, st.Statistics]()
    evaluator = Evaluator(model, options.test, options.windows)
    for row in missing:
        print(f"{row['method']} {row['keep']:.0%}", flush=True)
        is_control = row["method"] == "none"
        small = (
            model if is_control else st.open(pruned_path(model, row, statistics_by_kind, options))
        )
        before = evaluator.measure(evaluator.original if is_control else st.load(small))
        began = time.monotonic()
        recovered = run(model, row, small, options)
        seconds = round(time.monotonic() - began)
        after = evaluator.measure(st.load(recovered))
        line = row | {"length": options.length, "before": before, "after": after}
        with options.results.open("a") as results:
            results.write(json.dumps(line | {"seconds": seconds}) + "\n")
        print(f"  NLL {before['nll']} -> {after['nll']}, {seconds} s", flush=True)


if __name__ == "__main__":
    main()
