"""Does `trim` choose a shape well? Compares its choice with all others of the same bytes.

    python studies/shapes.py run MODEL --text train.jsonl --test wiki.valid.raw --work FOLDER
    python studies/shapes.py page

For each share of the state's bytes, `trim --to SHARE` chooses a shape; then `trim --to SHAPE`
prunes to every candidate with the same options. All are measured on another text and other recall
sequences than those of the choice: NLL over windows of 256 tokens, recall by MQAR (mqar.py);
intervals are 95 %, paired by window and by sequence.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections import Counter
from dataclasses import replace
from itertools import groupby
from math import exp, expm1
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from scipy.stats import spearmanr

import statetrim as st
from evaluator import Evaluator
from runner import Row, Rows, fill, read_rows, start, study_parser, table

ROWS, SEED = 64, 4321  # recall sequences for each number of pairs
Cases = dict[tuple[str, float], list[Row]]
COLOURS = ("#1f5fa8", "#c2571a", "#2d7d46", "#8a3f8f")


def trim_seconds(model: st.Checkpoint, options: st.TrimOptions, out: Path) -> float:
    """Run trim and return its CPU seconds, which other load on the machine does not change."""
    start = time.process_time()
    st.trim(model, **vars(options), out=out)
    return round(time.process_time() - start, 1)


def measure_share(options: argparse.Namespace, share: float, results: Rows) -> None:
    """Add the lines of one share of the state's bytes, all together."""
    model = st.open(options.model)
    name = model.path.resolve().name
    if results.has({"model": name, "share": share}):
        return
    settings = st.TrimOptions(text=options.text, tokens=options.tokens, control=False)
    decided_path = options.work / f"{name}-state-{share:g}"
    deciding_seconds = trim_seconds(model, replace(settings, to=share), decided_path)
    decision = json.loads((decided_path / "statetrim" / "decision.json").read_text())
    evaluator = Evaluator(model, options.test, options.windows, options.pairs, ROWS, SEED)
    original = {name: evaluator.figures(evaluator.original)[name] for name in MEASURES}
    rows = []
    for shape, cost in decision["predicted"].items():
        fixed_path = options.work / f"{name}-{shape}"
        seconds = trim_seconds(model, replace(settings, to=shape, refit=True), fixed_path)
        figures = evaluator.figures(st.load(st.open(fixed_path)))
        row = {"model": name, "share": share, "original": original, "shape": shape}
        row |= {"predicted": cost, "chosen": shape == decision["chosen"]}
        row |= {"refused": decision["refused"][shape]} | {name: figures[name] for name in MEASURES}
        rows.append(row | {"cpu_seconds": seconds, "deciding_cpu_seconds": deciding_seconds})
        shutil.rmtree(fixed_path)
    for row in rows:
        results.add(row)


MEASURES = ("nll", "kl", "recall")


def run() -> None:
    parser = study_parser(
        __doc__, "model", "text", "test", "work", results="results/shapes.jsonl",
        shares=[0.5, 0.25], tokens="32k", windows=96, pairs=[16, 32, 63],
    )  # fmt: skip
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.work.mkdir(parents=True, exist_ok=True)
    results = Rows(options.results)
    for share in options.shares:
        measure_share(options, share, results)


def best_or_within(rows: list[Row]) -> tuple[bool, bool]:
    """Whether the interval of the chosen shape reaches the best NLL, and the best recall."""
    chosen = next(row for row in rows if row["chosen"])
    loss = chosen["nll"][2] <= min(row["nll"][1] for row in rows)
    recall = chosen["recall"][3] >= max(row["recall"][1] for row in rows)
    return loss, recall


def correlation(rows: list[Row], measure: str) -> float:
    """Spearman correlation of the predicted cost with the measured loss; 1: the same order."""
    sign = -1 if measure == "recall" else 1
    result = spearmanr([r["predicted"] for r in rows], [sign * r[measure][1] for r in rows])
    return float(result.statistic)


def agreement_table(cases: Cases) -> str:
    lines = []
    for (model, share), rows in cases.items():
        loss, recall = best_or_within(rows)
        fixed = sorted(row["cpu_seconds"] for row in rows)
        times = rows[0]["deciding_cpu_seconds"] / fixed[len(fixed) // 2]
        chosen = next(row for row in rows if row["chosen"])
        cells = [model, f"{exp(chosen['original']['nll'][0]):.0f}", f"{share:g}", chosen["shape"]]
        cells += [lost(*(100 * expm1(x) for x in chosen["nll"][1:]))]
        cells += [lost(*(-100 * x for x in chosen["recall"][1:]))]
        cells += ["yes" if loss else "no", "yes" if recall else "no"]
        cells += [f"{correlation(rows, measure):+.2f}" for measure in ("nll", "recall")]
        lines.append([*cells, f"{times:.1f}x"])
    header = [
        "model", "perplexity", "of the bytes", "chosen", "perplexity, % lost",
        "recall, points lost", "NLL best or within", "recall best or within",
        "rank correlation, NLL", "recall", "cost of deciding",
    ]  # fmt: skip
    return table(header, lines)


def lost(estimate: float, *ends: float) -> str:
    return f"{estimate:.1f} ({min(ends):.1f}, {max(ends):.1f})"


def shapes_text(widths: str) -> str:
    """`64x64, 3 of 16x16` of `0=64x64,1=16x16,...`, in the order of layers."""
    layer_shapes = [entry.partition("=")[2] for entry in widths.split(",")]
    return ", ".join(
        f"{n} of {shape}" if n > 1 else shape for shape, n in Counter(layer_shapes).items()
    )


def draw(cases: Cases, path: Path) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(10, 4.2))
    colours = dict(zip(dict.fromkeys(model for model, _ in cases), COLOURS, strict=False))
    for axis, (measure, scale, label) in zip(
        axes,
        (("nll", 1, "increase of NLL, nats"), ("recall", -100, "loss of recall, points")),
        strict=True,
    ):
        for (model, share), rows in cases.items():
            for row in rows:
                _, middle, *ends = (scale * x for x in row[measure])
                bars = [[middle - min(ends)], [max(ends) - middle]]
                axis.errorbar(
                    row["predicted"], middle, bars,
                    color=colours[model], marker="s" if share == 0.5 else "o",
                    mfc=colours[model] if row["chosen"] else "white", capsize=2,
                )  # fmt: skip
        axis.set(xscale="log", xlabel="predicted: part of the layers' output missed", ylabel=label)
        axis.grid(alpha=0.3)
    for model, colour in colours.items():
        axes[0].plot([], [], "s", color=colour, label=model)
    axes[0].plot([], [], "o", color="grey", label="a quarter (squares: half)")
    axes[0].plot([], [], "s", color="grey", mfc="white", label="not chosen")
    axes[0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def page(results: Path) -> None:
    rows = read_rows(results / "shapes.jsonl")
    cases = {key: list(group) for key, group in groupby(rows, lambda r: (r["model"], r["share"]))}
    fill(results / "shapes.md", {"agreement": agreement_table(cases)})
    draw(cases, results / "shapes.png")


if __name__ == "__main__":
    start(page, run=run)
