"""How much does recovery repair? Methods and widths on one checkpoint, before and after, and a
control: the original after the same recovery.

    python studies/recovery.py run MODEL --text train.jsonl --test wiki.valid.raw --work WORK \\
        [--tokens 196608]
    python studies/recovery.py page

Calibrates once, prunes and recovers in WORK, and adds a line per run to the results. Runs in the
results are not repeated, and an interrupted run resumes. Recovery reads other text than calibration
(`--data text`), or half text and half recall sequences, drawn with another seed than those of the
test (`--data half`); `--data layerwise` trains one mixer at a time on the text, without a control.
NLL, KL and recall are measured as in methods.py. The picture shows recovery on text, by as many
tokens as the first line has.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch

import statetrim as st
from evaluator import quiet
from methods import CALIBRATED, STYLES, MethodsEvaluator, collect_statistics, recall_sequences
from runner import Row, Rows, by_model, fill, places, read_rows, start, study_parser, table
from statetrim.progress import Progress
from statetrim.runtime.corpus import Corpus
from statetrim.storage.text import Sequences

METHODS = ("rand", "l1", "s_wanda", "grad", "drrqr")
CALIBRATION_TOKENS = 128 * 512


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


def recover(model: st.Checkpoint, row: Row, small: st.Checkpoint, options: Any) -> st.Checkpoint:
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


def run() -> None:
    parser = study_parser(
        __doc__, "model", "text", "test", "work", results="results/recovery.jsonl", name=None,
        methods=list(METHODS), keep=[0.5, 0.25], tokens=48 * 16 * 256, length=256,
        learning_rate=2e-3, windows=320,
    )  # fmt: skip
    parser.add_argument("--data", choices=["text", "half", "layerwise"], default="text")
    options = parser.parse_args()
    quiet()
    options.work.mkdir(parents=True, exist_ok=True)
    model, statistics_by_kind = st.open(options.model), dict[str, st.Statistics]()
    evaluator = MethodsEvaluator(model, options.test, options.windows)

    def measure(row: Row) -> Row:
        is_control = row["method"] == "none"
        small = (
            model if is_control else st.open(pruned_path(model, row, statistics_by_kind, options))
        )
        before = evaluator.measure(evaluator.original if is_control else st.load(small))
        began = time.monotonic()
        recovered = recover(model, row, small, options)
        seconds = round(time.monotonic() - began)
        after = evaluator.measure(st.load(recovered))
        return {"length": options.length, "before": before, "after": after, "seconds": seconds}

    Rows(options.results).measure_missing(cases(options), measure)


def control_of(rows: list[Row]) -> Row:
    return next(row for row in rows if row["method"] == "none")


def perplexity(figures: Row) -> float:
    return math.exp(figures["nll"])


def gap_closed(row: Row, control: Row) -> float:
    """Share of the perplexity gap to the control (the recovered original) that recovery closed."""
    before, after = perplexity(row["before"]), perplexity(row["after"])
    return (before - after) / (before - perplexity(control["after"]))


def excess_text(row: Row, control: Row) -> str:
    """Perplexity above that of the original, before recovery and after recovery of both."""
    gaps = [perplexity(row[when]) - perplexity(control[when]) for when in ("before", "after")]
    return f"{gaps[0]:.1f} -> {gaps[1]:.1f} ({100 * (gaps[1] / gaps[0] - 1):+.0f} %)"


def recovery_table(rows: list[Row], control: Row) -> str:
    recall = control["before"]["recall"]
    pairs = list(recall) if max(recall.values(), default=0) > 0.01 else []  # if it ever learned it
    header = ["method", "keep", "perplexity before", "after", "gap closed", "excess over control"]
    if pairs:
        header += [f"recall at {' / '.join(pairs)} pairs, before", "after"]
    lines = []
    for row in rows:
        is_control = row["method"] == "none"
        cells = ["dense control" if is_control else row["method"], f"{row['keep'] * 100:.0f} %"]
        cells += [f"{perplexity(row[when]):.1f}" for when in ("before", "after")]
        cells += (
            ["", ""]
            if is_control
            else [f"{gap_closed(row, control):.0%}", excess_text(row, control)]
        )
        if pairs:
            for when in ("before", "after"):
                cells.append("/".join(f"{row[when]['recall'][p]:.2f}" for p in pairs))
        lines.append(cells)
    return table(header, lines)


def draw(models: dict[str, list[Row]], path: Path) -> None:
    plt.rcParams["figure.constrained_layout.use"] = True
    figure, axes = plt.subplots(1, len(models), figsize=(4.6 * len(models), 5.4), squeeze=False)
    for axis, (name, rows) in zip(axes[0], models.items(), strict=True):
        control = control_of(rows)
        for row in rows:
            if row["method"] == "none":
                continue
            colour, marker = STYLES[row["method"]]
            values = [perplexity(row[when]) for when in ("before", "after")]
            style = "-" if row["keep"] == 0.5 else "--"
            label = f"{row['method']}, {row['keep']:.0%} kept"
            axis.plot([0, 1], values, style, color=colour, marker=marker, label=label)
        axis.plot(
            [0, 1],
            [perplexity(control[when]) for when in ("before", "after")],
            ":", color="black", linewidth=2, label="dense control",
        )  # fmt: skip
        axis.set(title=name, xticks=[0, 1], xlim=(-0.2, 1.2), yscale="log", ylabel="perplexity")
        axis.set_xticklabels(["before recovery", "after"])
        for which in (axis.yaxis.set_major_formatter, axis.yaxis.set_minor_formatter):
            which("{x:.0f}")
        axis.grid(alpha=0.3, which="both")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=3, frameon=False, handlelength=4
    )
    figure.savefig(path, dpi=130)


def page(results: Path) -> None:
    document, rows = results / "recovery.md", read_rows(results / "recovery.jsonl")

    def rows_of(model: str, data: str, tokens: int) -> list[Row]:
        identity = {"model": model, "data": data, "tokens": tokens}
        return [row for row in rows if identity.items() <= row.items()]

    contents = {}
    for place in places(document, "recovery"):
        model, data, tokens = place.split()
        control = control_of(rows_of(model, data.replace("layerwise", "text"), int(tokens)))
        if data == "layerwise":  # it does not train on next tokens, so there is no control
            control = control | {"after": control["before"]}
        contents[f"recovery {place}"] = recovery_table(rows_of(model, data, int(tokens)), control)
    fill(document, contents)
    models = {name: rows_of(name, "text", rows[0]["tokens"]) for name in by_model(rows)}
    draw(models, results / "recovery.png")


if __name__ == "__main__":
    start(page, run=run)
