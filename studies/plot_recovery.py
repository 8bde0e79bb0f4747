"""Table and figure from the results of recover_reference.py.

    python studies/plot_recovery.py results/recovery.jsonl results/recovery.md

Fills the places `<!-- recovery MODEL DATA TOKENS -->` ... `<!-- end -->` of the Markdown file and
draws `recovery.png` next to the results: recovery on text, by as many tokens as the first line has.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from arguments import path_parser
from plot_methods import STYLES, table

Row = dict[str, Any]


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
    pairs = list(control["before"]["recall"])
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
                cells.append(" / ".join(f"{row[when]['recall'][p]:.2f}" for p in pairs))
        lines.append(cells)
    return table(header, lines)


def draw(models: dict[str, list[Row]], path: Path) -> None:
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


def main() -> None:
    parser = path_parser(__doc__, "results", "document")
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.results.read_text().splitlines()]

    def rows_of(model: str, data: str, tokens: int) -> list[Row]:
        identity = {"model": model, "data": data, "tokens": tokens}
        return [row for row in rows if identity.items() <= row.items()]

    def fill(place: re.Match[str]) -> str:
        model, data, tokens = place.groups()
        layerwise = data == "layerwise"
        control = control_of(rows_of(model, "text" if layerwise else data, int(tokens)))
        if layerwise:  # layerwise recovery does not train on next tokens, so there is no control
            control = control | {"after": control["before"]}
        filled = recovery_table(rows_of(model, data, int(tokens)), control)
        return f"<!-- recovery {model} {data} {tokens} -->\n\n{filled}\n\n<!-- end -->"

    text = options.document.read_text()
    pattern = r"<!-- recovery (\S+) (\S+) (\d+) -->.*?<!-- end -->"
    options.document.write_text(re.sub(pattern, fill, text, flags=re.DOTALL))
    plt.rcParams["figure.constrained_layout.use"] = True
    tokens = rows[0]["tokens"]
    names = dict.fromkeys(row["model"] for row in rows)
    models = {name: rows_of(name, "text", tokens) for name in names}
    draw(models, options.results.with_suffix(".png"))


if __name__ == "__main__":
    main()
