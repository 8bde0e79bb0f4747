"""Tables and figure from the results of compare_shapes.py.

    python studies/plot_shapes.py results/shapes.jsonl results/uneven.jsonl results/shapes.md \
        README.md

Fills the places `<!-- agreement -->` and `<!-- lost -->` (each up to its `<!-- end -->`) of the
Markdown files and draws `shapes.png` next to the results.
"""

from __future__ import annotations

import json
import re
from itertools import groupby
from math import exp
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from scipy.stats import spearmanr

from arguments import path_parser
from plot_methods import table

Row = dict[str, Any]
Cases = dict[tuple[str, float], list[Row]]
COLOURS = ("#1f5fa8", "#c2571a", "#2d7d46", "#8a3f8f")


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
        cells = [model, f"{share:g}", next(row["shape"] for row in rows if row["chosen"])]
        cells += ["yes" if loss else "no", "yes" if recall else "no"]
        cells += [f"{correlation(rows, measure):+.2f}" for measure in ("nll", "recall")]
        lines.append([*cells, f"{times:.1f}x"])
    header = [
        "model", "of the bytes", "chosen", "NLL best or within", "recall best or within",
        "rank correlation, NLL", "recall", "cost of deciding",
    ]  # fmt: skip
    return table(header, lines)


def lost_table(cases: Cases, by_layer: list[Row]) -> str:
    """What half of the bytes costs with the shape that `trim` chose, and with widths by layer."""
    lines = []
    for (model, share), rows in cases.items():
        before = rows[0]["original"]["recall"][0]
        if share != 0.5 or before < 0.5:  # a model with little recall cannot lose much
            continue
        chosen = next(row for row in rows if row["chosen"])
        lines.append([model, chosen["shape"], *lost(chosen)])
        for row in by_layer:
            if (row["model"], row["share"], row["seed"], row["kind"]) == (model, share, 0, "free"):
                lines.append([model, "by layer", *lost(row)])
    return table(["model, half of the bytes", "shape", "perplexity lost", "recall"], lines)


def lost(row: Row) -> list[str]:
    """The perplexity lost, and recall before and after."""
    loss = f"{100 * (exp(row['nll'][1]) - 1):.1f} %"
    return [loss, f"{row['original']['recall'][0]:.2f} -> {row['recall'][0]:.2f}"]


def fill(pages: list[Path], contents: dict[str, str]) -> None:
    """Replace the text between `<!-- NAME -->` and `<!-- end -->` in Markdown files."""
    for page in pages:
        text = page.read_text()
        for name, content in contents.items():
            place = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
            text = re.sub(place, rf"\g<1>{content}\n\g<2>", text, flags=re.DOTALL)
        page.write_text(text)


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


def main() -> None:
    parser = path_parser(__doc__, "results", "by_layer")
    parser.add_argument("pages", type=Path, nargs="+")
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.results.read_text().splitlines()]
    cases = {key: list(group) for key, group in groupby(rows, lambda r: (r["model"], r["share"]))}
    by_layer = [json.loads(line) for line in options.by_layer.read_text().splitlines()]
    contents = {
        "agreement": agreement_table(cases),
        "lost": lost_table(cases, by_layer),
    }
    fill(options.pages, contents)
    draw(cases, options.results.with_suffix(".png"))


if __name__ == "__main__":
    main()
