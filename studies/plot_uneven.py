"""Tables and figure from the results of compare_uneven.py, and vLLM's capacity.

    python studies/plot_uneven.py results/uneven.jsonl results/uneven-capacity.json \
        results/uneven.md

Fills the places `<!-- uneven -->`, `<!-- allocation -->` and `<!-- capacity -->` (each up to its
`<!-- end -->`) of the Markdown file and draws `uneven.png` next to the results.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from arguments import path_parser
from plot_methods import table
from plot_shapes import fill

Row = dict[str, Any]
KINDS = {"uniform": "#8a8a8a", "squares": "#c2571a", "free": "#1f5fa8"}


def interval(change: list[float], scale: float, digits: int) -> str:
    _, estimate, low, high = change
    half = scale * (high - low) / 2
    return f"{scale * estimate:+.{digits}f} ± {half:.{digits}f}"


def shapes_text(widths: str) -> str:
    """`64x64, 3 of 16x16` of `0=64x64,1=16x16,...`, in the order of layers."""
    layer_shapes = [entry.partition("=")[2] for entry in widths.split(",")]
    return ", ".join(
        f"{n} of {shape}" if n > 1 else shape for shape, n in Counter(layer_shapes).items()
    )


def differs_by_layer(row: Row) -> bool:
    """Whether the layers have different shapes; if not, the cut equals the uniform one."""
    return len({entry.partition("=")[2] for entry in row["widths"].split(",")}) > 1


def by_layer_table(rows: list[Row]) -> str:
    lines = []
    for row in sorted(rows, key=lambda r: (r["model"], -r["share"], r["seed"], -r["taken"])):
        pairs = [name for name in row if name.startswith("recall ")]
        recall = " / ".join(f"{row[name][0]:.3f}" for name in pairs)
        before = " / ".join(f"{row['original'][name][0]:.3f}" for name in pairs)
        lines.append(
            [
                row["model"], f"{row['taken']:.0%}", str(row["seed"]), row["kind"],
                shapes_text(row["widths"]), interval(row["nll"], 1, 4), f"{recall} ({before})",
            ]
        )  # fmt: skip
    header = [
        "model",
        "state bytes",
        "seed",
        "kind",
        "shapes",
        "NLL change",
        "recall at 16 / 32 / 63 pairs (original)",
    ]
    return table(header, lines)


def allocation_sentence(rows: list[Row]) -> str:
    """A sentence on how much more greedy allocations cost than exact ones, as predicted."""
    both = [(row["predicted"], row["greedy"]) for row in rows if row.get("greedy") is not None]
    same = sum(greedy <= exact + 1e-9 for exact, greedy in both)
    worst = max(greedy - exact for exact, greedy in both)
    return (
        f"If costs add up, the allocation is optimal (a knapsack problem, solved in milliseconds). "
        f"A greedy allocation has the same cost in {same} of {len(both)} cases"
        + (f" and costs at most {worst:.4f} more." if same < len(both) else ".")
    )


def capacity_table(capacity: Row) -> str:
    """Sequences of 1K tokens by model and state; copies of a model in another format are left
    out."""
    columns = [(dtype, drafts) for dtype in ("float32", "bfloat16") for drafts in (0, 3)]
    lines = []
    for model, cases in capacity["models"].items():
        if not model.startswith("Qwen"):
            continue
        counts: dict[str, dict[tuple[str, int], float]] = defaultdict(dict)
        for case in cases:
            settings = case["state_dtype"], case["speculative"]
            counts[case["state"]][settings] = case["sequences"]["1024"]
        for state, by_settings in counts.items():
            shown = [f"{by_settings[column]:.0f}" for column in columns]
            lines.append([model.replace("--", "/"), state, *shown])
    names = [f"{dtype}, {drafts} drafts" for dtype, drafts in columns]
    return table(["model", "layers", *names], lines)


def draw(rows: list[Row], path: Path) -> None:
    models = sorted({row["model"] for row in rows})
    figure, axes = plt.subplots(
        2, len(models), figsize=(4 * len(models), 6), sharex=True, squeeze=False
    )
    for column, model in enumerate(models):
        points: dict[str, list[Row]] = defaultdict(list)
        for row in rows:
            if row["model"] == model:
                points[row["kind"]].append(row)
        for kind, colour in KINDS.items():
            for axis, measure, scale in zip(
                axes[:, column], ("nll", "recall"), (1, -100), strict=True
            ):
                x = [100 * row["taken"] for row in points[kind]]
                y = [scale * row[measure][1] for row in points[kind]]
                half = [abs(scale) * (r[measure][3] - r[measure][2]) / 2 for r in points[kind]]
                axis.errorbar(x, y, half, fmt="o", color=colour, label=kind, capsize=3, alpha=0.8)
        axes[0, column].set_title(model, fontsize=10)
        axes[1, column].set_xlabel("% of the state's bytes")
    axes[0, 0].set_ylabel("increase of NLL, nats")
    axes[1, 0].set_ylabel("recall lost, points")
    axes[0, 0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = path_parser(__doc__, "results", "capacity", "page")
    options = parser.parse_args()
    lines = options.results.read_text().splitlines()
    rows = [
        row for row in map(json.loads, lines) if row["kind"] != "squares" or differs_by_layer(row)
    ]
    fill(
        [options.page],
        {
            "uneven": by_layer_table(rows),
            "allocation": allocation_sentence(rows),
            "capacity": capacity_table(json.loads(options.capacity.read_text())),
        },
    )
    draw(rows, options.results.with_suffix(".png"))


if __name__ == "__main__":
    main()
