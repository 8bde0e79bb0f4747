"""Keys, values or both? Cuts of both axes of the state at equal bytes, on one checkpoint.

    python studies/two_axes.py run MODEL --text train.jsonl --test wiki.valid.raw \\
        --method product,readout_greedy
    python studies/two_axes.py page

For every share of the state's bytes it removes key channels alone, value channels alone, both to a
square, and both with more of either. It measures each cut before and after a refit of the output
projections, and after a short recovery of the refitted model. NLL and KL are over windows of 256
tokens of the test text, recall is MQAR (mqar.py); intervals are 95 %, paired by window and by
sequence.
"""

from __future__ import annotations

import argparse
import tempfile
from fractions import Fraction
from math import exp, isqrt
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.lines import Line2D

import statetrim as st
from evaluator import Evaluator
from runner import Row, Rows, by_model, read_rows, start, study_parser
from statetrim.cut.geometry import Geometry

PARTS = ("1/4", "1/16", "1/2", "3/8")
STYLES = {  # Okabe and Ito's colours
    "key": ("#0072B2", "s"),
    "value": ("#D55E00", "o"),
    "square": ("#009E73", "D"),
    "more keys": ("#56B4E9", "^"),
    "more values": ("#E69F00", "v"),
}
LINES = {"cut": ":", "refit": "-", "recovered": "--"}
RECALL = "recall 16"
RECALL_PAIRS = (8, 16, 32)
CALIBRATION: dict[str, Any] = {"tokens": 2**15, "length": 512, "recall": 0.0}
# 64 tokens for each of at most 256 columns
REFIT: dict[str, Any] = {"tokens": 2**14, "length": 512, "recall": 0.0}
RECOVERY: dict[str, Any] = {"tokens": 2**15, "length": 256, "batch_size": 8, "learning_rate": 1e-3}


def shapes_for_share(geometry: Geometry, share: Fraction) -> dict[str, tuple[int, int]]:
    """(key width, value width) of cuts to at most, and nearly, this share of the state's bytes: of
    one axis alone, of both to a square, and of both with one axis wider."""
    keys, values = geometry.head_k_dim, geometry.head_v_dim
    budget = int(share * keys * values)
    side = min(isqrt(budget), keys, values)
    longer = min(2 * side if share <= Fraction(1, 8) else (4 * side + 2) // 3, keys, values)
    shapes = {
        "key": (budget // values, values),
        "value": (keys, budget // keys),
        "square": (side, side),
        "more keys": (longer, min(budget // max(longer, 1), values)),
        "more values": (min(budget // max(longer, 1), keys), longer),
    }
    if not 0 < share < 1 or not all(min(shape) for shape in shapes.values()):
        raise st.StatetrimError(
            f"{share} of a state of {keys} x {values} leaves an axis with nothing; give a "
            f"fraction between {Fraction(1, min(keys, values))} and 1"
        )
    return shapes


def cases(options: argparse.Namespace, geometry: Geometry) -> list[Row]:
    """The keys that identify each line of the results, in the order of measuring."""
    name = options.name or options.model.resolve().name
    rows: list[Row] = [{"model": name, "part": "1", "shape": "original", "step": "cut"}]
    for step in options.steps:
        for part in options.parts:
            for kind in options.shapes:
                keys, values = shapes_for_share(geometry, Fraction(part))[kind]
                key_method, value_method = options.method.split(",")
                methods = {
                    "key_method": None if kind == "value" else key_method,
                    "value_method": None if kind == "key" else value_method,
                }
                row = {"model": name, "part": part, "shape": kind, "size": [keys, values]}
                rows.append({**row, **methods, "step": step})
    return rows


class CutMaker:
    """Makes cuts of one model with statetrim's commands; calibrates once."""

    def __init__(self, model: st.Checkpoint, text: Path, methods: list[str], folder: Path) -> None:
        self.model, self.text, self.folder = model, text, folder
        statistics_path = folder / f"{model.digest[:12]}-{'-'.join(sorted(methods))}.safetensors"
        if statistics_path.exists():
            self.statistics = st.Statistics.load(statistics_path)
        else:
            self.statistics = st.calibrate(
                model, text, methods=methods, out=statistics_path, **CALIBRATION
            )

    def make_checkpoint(self, row: Row) -> st.Checkpoint:
        keys, values = row["size"]
        name = f"{row['model']}-{keys}x{values}-{row['key_method']}-{row['value_method']}"
        plan = st.select(
            self.model,
            [row["key_method"] or "l1", row["value_method"] or "readout_l1"],
            f"{keys}x{values}",
            statistics=self.statistics,
        )
        cut = st.prune(self.model, plan, self.folder / f"{name}-cut")
        if row["step"] == "cut":
            return cut
        statistics = st.calibrate(cut, self.text, original=self.model, **REFIT)
        cut = st.refit(cut, statistics, out=self.folder / f"{name}-refit")
        if row["step"] == "refit":
            return cut
        return st.recover(
            cut,
            teacher=self.model,
            text=self.text,
            skip=CALIBRATION["tokens"],
            out=self.folder / f"{name}-recovered",
            **RECOVERY,
        )


def axis_figures(evaluator: Evaluator, live: Any) -> Row:
    """Metric -> mean, and both ends of the change's interval."""
    row: Row = {}
    for name, (mean, _, low, high) in evaluator.figures(live).items():
        if name != "recall":
            row[name] = [mean, low, high]
    return row | {"perplexity": round(exp(row["nll"][0]), 2)}


def run() -> None:
    parser = study_parser(
        __doc__, "model", "text", "test", results="results/two-axes.jsonl", name=None,
        method="energy,readout_greedy", parts=list(PARTS), windows=48, work=None,
    )  # fmt: skip
    parser.add_argument("--shapes", nargs="+", choices=STYLES, default=list(STYLES))
    parser.add_argument("--steps", nargs="+", choices=LINES, default=list(LINES))
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = st.open(options.model)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.work or Path(temporary)
        folder.mkdir(exist_ok=True)
        maker = CutMaker(model, options.text, options.method.split(","), folder)
        evaluator = Evaluator(model, options.test, options.windows, list(RECALL_PAIRS))

        def measure(row: Row) -> Row:
            if row["shape"] == "original":
                return axis_figures(evaluator, evaluator.original)
            return axis_figures(evaluator, st.load(maker.make_checkpoint(row)))

        Rows(options.results).measure_missing(cases(options, model.geometry), measure)


def draw(models: dict[str, list[Row]], path: Path) -> None:
    plt.rcParams["figure.constrained_layout.use"] = True
    size = (3.2 * len(models), 6.6)
    figure, axes = plt.subplots(2, len(models), figsize=size, squeeze=False, sharex=True)
    for column, (name, rows) in enumerate(models.items()):
        original = next(row for row in rows if row["shape"] == "original")
        for shape, (colour, marker) in STYLES.items():
            for step, line in LINES.items():
                selected = [row for row in rows if (row["shape"], row["step"]) == (shape, step)]
                selected.sort(key=lambda row: Fraction(row["part"]))
                shares = [float(Fraction(row["part"])) for row in selected]
                rise = [row["nll"][0] - original["nll"][0] for row in selected]
                style = {"color": colour, "marker": marker, "linestyle": line, "markersize": 6}
                if step == "recovered":
                    style |= {"markerfacecolor": "none", "linestyle": "none", "markersize": 9}
                axes[0, column].plot(shares, rise, **style)
                axes[1, column].plot(shares, [row[RECALL][0] for row in selected], **style)
        axes[0, column].set(title=name, yscale="log", xscale="log")
        axes[1, column].axhline(original[RECALL][0], color="black", linewidth=1)
        ticks = [1 / 16, 1 / 4, 3 / 8, 1 / 2]
        axes[1, column].set(xlabel="part of the state's bytes", ylim=(-0.03, 1.05))
        axes[1, column].set_xticks(ticks, ["1/16", "1/4", "3/8", "1/2"])
        axes[1, column].minorticks_off()
        for axis in axes[:, column]:
            axis.grid(alpha=0.3)
    axes[0, 0].set_ylabel("increase of NLL per token (nats)")
    axes[1, 0].set_ylabel("recall accuracy, 16 pairs")
    handles = [
        Line2D([], [], color=colour, marker=marker, label=f"{shape} cut" if " " not in shape
                   else f"both, {shape}")
        for shape, (colour, marker) in STYLES.items()
    ]  # fmt: skip
    handles += [
        Line2D([], [], color="black", linestyle=":", label="as cut"),
        Line2D([], [], color="black", linestyle="-", label="refitted"),
        Line2D([], [], color="black", linestyle="none", marker="o", markersize=9,
                   markerfacecolor="none", label="and recovered"),
    ]  # fmt: skip
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path, dpi=130)


def page(results: Path) -> None:
    draw(by_model(read_rows(results / "two-axes.jsonl")), results / "two-axes.png")


if __name__ == "__main__":
    start(page, run=run)
