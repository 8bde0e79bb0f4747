"""Fewer channels, fewer bits, or both? Shapes x dtypes of the state, on one checkpoint.

    python studies/precision.py run MODEL --text train.jsonl --test valid.jsonl --work FOLDER
    python studies/precision.py page

Cuts are selected and refitted on text and recall sequences, half of the tokens each. Every shape is
measured in every dtype, with its state rounded after every token (as in decoding), against the
original in float32: NLL over windows of 256 tokens, recall as MQAR at 32 and 63 pairs. Intervals
are 95 %, paired by window and by sequence.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.lines import Line2D
from torch import Tensor
from torch.nn import functional

import statetrim as st
from evaluator import changes
from runner import Row, Rows, by_model, fill, read_rows, start, study_parser, table, with_margin
from statetrim.maths.quantization import FORMATS
from statetrim.runtime.corpus import Corpus
from statetrim.runtime.loading import load_live
from statetrim.runtime.logits import LogitReader
from statetrim.runtime.states import stored_states
from statetrim.tasks import recall

SHAPES = {"full": (1.0, 1.0), "1/2": (1.0, 0.5), "1/4": (0.5, 0.5)}  # shares of keys, of values
CALIBRATION: dict[str, Any] = {"tokens": 2**13, "length": 256, "recall": 0.5}
WINDOW, PAIRS = 256, (32, 63)
COLOURS = {  # Okabe and Ito's
    "float32": "#000000",
    "bfloat16": "#0072B2",
    "float16": "#009E73",
    "float8_e4m3fn": "#E69F00",
    "int8": "#D55E00",
}
MARKERS = {"full": "o", "1/2": "s", "1/4": "^"}
FIGURES = {"nll": ("NLL, nats", 3), "recall 32": ("recall at 32, points", 1),
           "recall 63": ("recall at 63, points", 1)}  # fmt: skip


def make_cut(model: st.Checkpoint, part: str, text: Path, work: Path) -> st.Checkpoint:
    """The refitted cut of a shape, from `work` if it exists."""
    key_share, value_share = SHAPES[part]
    keys = round(key_share * model.geometry.head_k_dim)
    values = round(value_share * model.geometry.head_v_dim)
    if part == "full":
        return model
    out = work / f"{model.path.name}-{keys}x{values}"
    if out.exists():
        return st.open(out)
    statistics_path = work / f"{model.path.name}.safetensors"
    if not statistics_path.exists():
        methods = ["product", "readout_greedy"]
        st.calibrate(model, text, methods=methods, out=statistics_path, **CALIBRATION)
    plan = st.select(
        model,
        "product,readout_greedy",
        f"{keys}x{values}",
        statistics=statistics_path,
    )
    small = st.prune(model, plan, work / f"{out.name}-plain")
    fit_statistics = st.calibrate(small, text, original=model, **CALIBRATION)
    return st.refit(small, fit_statistics, out=out)


class Evaluator:
    """Measures models with rounded states against the original, which is measured once."""

    def __init__(self, model: st.Checkpoint, test: Path, rows: int) -> None:
        tokens = rows * WINDOW
        self.ids = Corpus(test, model).read(tokens=tokens, length=WINDOW).ids.long()
        self.rows = rows
        self.original = self.samples(model, st.StateStorage())

    @torch.inference_mode()
    def samples(self, model: st.Checkpoint, storage: st.StateStorage) -> dict[str, Tensor]:
        """Float64 [rows]: NLL of each window in nats, recall of each sequence in percent."""
        live = load_live(model)
        reader = LogitReader(live)
        with stored_states(live, storage):
            logits = reader.forward(self.ids)(torch.arange(WINDOW - 1))
        nll = functional.cross_entropy(logits.mT, self.ids[:, 1:], reduction="none").mean(1)
        samples = {"nll": nll.double()}
        for pairs in PAIRS:
            ids, query_positions = recall.associations(
                reader.vocab_size, rows=self.rows, pairs=pairs
            )
            with stored_states(live, storage):
                logits = reader.forward(ids)(query_positions)
            recalled = recall.recalled_share(ids, query_positions, logits)
            samples[f"recall {pairs}"] = 100 * recalled.double()
        return samples


def run() -> None:
    paths = ("model", "text", "test", "work")
    parser = study_parser(__doc__, *paths, results="results/precision.jsonl")
    parser.add_argument("--rows", type=int, default=12, help="windows, and recall sequences")
    parser.add_argument("--dtypes", nargs="+", default=list(FORMATS), choices=FORMATS)
    parser.add_argument("--stochastic", action="store_true", help="round up or down by chance")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    model = st.open(options.model)
    evaluator = Evaluator(model, options.test, options.rows)
    keys, values = model.geometry.head_k_dim, model.geometry.head_v_dim
    case = {"model": model.path.name, "stochastic": options.stochastic}
    cases = [case | {"part": part, "dtype": name} for part in SHAPES for name in options.dtypes]

    def measure(row: Row) -> Row:
        key_share, value_share = SHAPES[row["part"]]
        shape = round(key_share * keys), round(value_share * values)
        small = make_cut(model, row["part"], options.text, options.work)
        share = stored_bytes(row["dtype"], *shape) / (4 * keys * values)
        storage = st.StateStorage(row["dtype"], 1, options.stochastic)
        figures = changes(evaluator.original, evaluator.samples(small, storage))
        return {"shape": list(shape), "bytes": share} | figures

    Rows(options.results).measure_missing(cases, measure)


def stored_bytes(dtype: str, keys: int, values: int) -> int:
    """Bytes of one head's state, with a float32 scale per value channel if 8-bit."""
    itemsize = FORMATS[dtype].dtype.itemsize
    return keys * values * itemsize + (4 * values if itemsize == 1 else 0)


def precision_table(rows: list[Row]) -> str:
    """Each dtype in full shape, and cuts in float32 and bfloat16."""
    header = ["model", "shape", "stored in", "bytes", *(title for title, _ in FIGURES.values())]
    lines = []
    for row in rows:
        is_full, dtype = row["part"] == "full", row["dtype"]
        if dtype == "float32" if is_full else dtype not in ("float32", "bfloat16"):
            continue
        shape = "{} x {}".format(*row["shape"])
        cells = [row["model"], shape, dtype, f"{100 * row['bytes']:.0f} %"]
        changed = (with_margin(row[name][1:], digits) for name, (_, digits) in FIGURES.items())
        lines.append([*cells, *changed])
    return table(header, lines, left=3)


def other_dtypes(rows: list[Row]) -> str:
    """How much cuts in the dtypes that the table leaves out differ from those in float32."""
    cuts = {(r["model"], r["part"], r["dtype"]): r for r in rows if r["part"] != "full"}
    texts = []
    for dtype in ("float16", "float8_e4m3fn", "int8"):
        pairs = [
            (cut, cuts[model, part, "float32"])
            for (model, part, cut_dtype), cut in cuts.items()
            if cut_dtype == dtype
        ]
        nats, *points = (max(abs(a[n][1] - b[n][1]) for a, b in pairs) for n in FIGURES)
        texts.append(f"{nats:.3f} nats and {max(points):.1f} points in {dtype}")
    return (
        f"Cuts in other dtypes ([rows](precision.jsonl)) differ from those in float32 by at most "
        f"{', '.join(texts)}."
    )


def draw(rows: list[Row], path: Path) -> None:
    models = by_model(rows)
    names = ("nll", "recall 63")
    figure, axes = plt.subplots(
        len(names), len(models), figsize=(4.4 * len(models), 7), squeeze=False
    )
    for column, (model, own_rows) in enumerate(models.items()):
        for line, name in enumerate(names):
            axis = axes[line][column]
            for row in own_rows:
                _, estimate, low, high = row[name]
                axis.errorbar(
                    100 * row["bytes"], estimate, [[estimate - low], [high - estimate]], capsize=2,
                    color=COLOURS[row["dtype"]], marker=MARKERS[row["part"]], linestyle="none",
                )  # fmt: skip
            axis.set_xscale("log", base=2)
            axis.set_xticks([100, 50, 25, 12.5, 6.25], ["100", "50", "25", "12.5", "6.25"])
            axis.axhline(0, color="#999999", linewidth=0.8)
            axis.set_xlabel("bytes of the state, %")
            axis.set_ylabel(f"change of {FIGURES[name][0]}")
        axes[0][column].set_title(model)
    dots = [Line2D([], [], color=c, marker="o", linestyle="none") for c in COLOURS.values()]
    kinds = [Line2D([], [], color="#555555", marker=m, linestyle="none")
             for m in MARKERS.values()]  # fmt: skip
    figure.legend([*dots, *kinds], [*COLOURS, *(f"shape {part}" for part in MARKERS)],
                  loc="lower center", ncols=8, frameon=False)  # fmt: skip
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    figure.savefig(path, dpi=110)


def page(results: Path) -> None:
    parts, dtypes = list(MARKERS), list(COLOURS)
    rows = sorted(
        read_rows(results / "precision.jsonl"),
        key=lambda row: (row["model"], parts.index(row["part"]), dtypes.index(row["dtype"])),
    )
    draw(rows, results / "precision.png")
    contents = {"precision": precision_table(rows), "other dtypes": other_dtypes(rows)}
    fill(results / "precision.md", contents)


if __name__ == "__main__":
    start(page, run=run)
