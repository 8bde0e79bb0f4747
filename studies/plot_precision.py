"""The table and the picture of results/precision.md, from the results of compare_precision.py.

    python studies/plot_precision.py results/precision.jsonl results/precision.md

Fills the place between `<!-- precision -->` and `<!-- end -->` and draws `precision.png` next to
the results.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.lines import Line2D

from arguments import path_parser

Row = dict[str, Any]
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


def change(row: Row, name: str) -> str:
    digits = FIGURES[name][1]
    _, estimate, low, high = row[name]
    return f"{estimate:+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f})"


def table(rows: list[Row]) -> str:
    header = ["model", "shape", "stored in", "bytes", *(title for title, _ in FIGURES.values())]
    lines = [header, ["---"] * 3 + ["---:"] * 4]
    for row in rows:
        shape = "{} x {}".format(*row["shape"])
        lines.append([row["model"], shape, row["dtype"], f"{100 * row['bytes']:.0f} %",
                      *(change(row, name) for name in FIGURES)])  # fmt: skip
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def draw(rows: list[Row], path: Path) -> None:
    models = list(dict.fromkeys(row["model"] for row in rows))
    names = ("nll", "recall 63")
    figure, axes = plt.subplots(
        len(names), len(models), figsize=(4.4 * len(models), 7), squeeze=False
    )
    for column, model in enumerate(models):
        for line, name in enumerate(names):
            axis = axes[line][column]
            for row in rows:
                if row["model"] != model:
                    continue
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


def main() -> None:
    parser = path_parser(__doc__, "results", "document")
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.results.read_text().splitlines()]
    order = (list(MARKERS), list(COLOURS))
    rows.sort(
        key=lambda row: (row["model"], order[0].index(row["part"]), order[1].index(row["dtype"]))
    )
    draw(rows, options.results.with_suffix(".png"))
    text = options.document.read_text()
    filled = f"<!-- precision -->\n\n{table(rows)}\n\n<!-- end -->"
    options.document.write_text(
        re.sub(r"<!-- precision -->.*?<!-- end -->", lambda _: filled, text, flags=re.S)
    )


if __name__ == "__main__":
    main()
