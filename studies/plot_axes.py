"""The tables and the picture of results/two-axes.md, from the results of compare_axes.py.

    python studies/plot_axes.py results/two-axes.jsonl results/two-axes.md

Fills the places `<!-- axes MODEL -->` ... `<!-- end -->` and draws `two-axes.png` next to the
results.
"""

from __future__ import annotations

import json
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.lines import Line2D

from arguments import path_parser

Row = dict[str, Any]
STYLES = {  # Okabe and Ito's colours
    "key": ("#0072B2", "s"),
    "value": ("#D55E00", "o"),
    "square": ("#009E73", "D"),
    "more keys": ("#56B4E9", "^"),
    "more values": ("#E69F00", "v"),
}
LINES = {"cut": ":", "refit": "-", "recovered": "--"}
RECALL = "recall 16"


def change(row: Row, original: Row, name: str, digits: int = 3) -> str:
    """The change from the original and half of its interval."""
    value, low, high = row[name]
    return f"{value - original[name][0]:+.{digits}f} ± {(high - low) / 2:.{digits}f}"


def table(rows: list[Row]) -> str:
    original = next(row for row in rows if row["shape"] == "original")
    pairs = [name for name in original if name.startswith("recall")]
    pair_counts = " / ".join(name.split()[1] for name in pairs)

    def recall(row: Row) -> str:
        return " / ".join(f"{row[name][0]:.2f}" for name in pairs)

    header = ["state bytes", "cut", "keys x values", "step", "perplexity", "NLL change", "KL"]
    header += [f"recall at {pair_counts} pairs", f"change at {RECALL.split()[1]}"]
    lines = [header, ["---"] * 4 + ["---:"] * 5]
    start = ["1", "none", "", "", f"{original['perplexity']:.1f}", f"{original['nll'][0]:.3f}", ""]
    lines.append([*start, recall(original), ""])
    for part in sorted({row["part"] for row in rows} - {"1"}, key=Fraction, reverse=True):
        for shape in STYLES:
            for step in LINES:
                for row in rows:
                    if (row["part"], row["shape"], row["step"]) == (part, shape, step):
                        size = "{} x {}".format(*row["size"])
                        names = [part, shape, size, step if step != "cut" else ""]
                        figures = [f"{row['perplexity']:.1f}", change(row, original, "nll")]
                        figures += [
                            f"{row['kl'][0]:.3f}",
                            recall(row),
                            change(row, original, RECALL, 2),
                        ]
                        lines.append(names + figures)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def draw(models: dict[str, list[Row]], path: Path) -> None:
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


def main() -> None:
    parser = path_parser(__doc__, "results", "document")
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.results.read_text().splitlines()]
    names = dict.fromkeys(row["model"] for row in rows)
    models = {name: [row for row in rows if row["model"] == name] for name in names}

    def fill(place: re.Match[str]) -> str:
        return f"<!-- axes {place[1]} -->\n\n{table(models[place[1]])}\n\n<!-- end -->"

    text = options.document.read_text()
    filled = re.sub(r"<!-- axes (\S+) -->.*?<!-- end -->", fill, text, flags=re.DOTALL)
    options.document.write_text(filled)
    plt.rcParams["figure.constrained_layout.use"] = True
    draw(models, options.results.with_suffix(".png"))


if __name__ == "__main__":
    main()
