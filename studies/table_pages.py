"""Two tables of results/uneven.md: one shape or widths by layer in vLLM, and recall of two lookups.

python studies/table_pages.py results/pages.jsonl results/uneven.jsonl results/two-hops.jsonl \\
    results/uneven.md
"""

from __future__ import annotations

import json
from typing import Any

from arguments import path_parser
from plot_methods import table
from plot_shapes import fill

Row = dict[str, Any]


def change(row: Row, figure: str, scale: float, digits: int) -> str:
    """The paired difference from the original, with its 95 % interval."""
    _, *numbers = row[figure]
    estimate, low, high = (f"{scale * number:+.{digits}f}" for number in numbers)
    return f"{estimate} ({low} to {high})"


def pages_table(pages: list[Row], uniform: list[Row]) -> str:
    """One shape for all layers of each model, share and seed, and then the cuts by layer."""
    by_case: dict[tuple[Any, ...], list[Row]] = {}
    for row in (*uniform, *pages):
        by_case.setdefault((row["model"], row["share"], row["seed"]), []).append(row)
    lines = []
    for cuts in by_case.values():
        if all(cut["kind"] == "uniform" for cut in cuts):
            continue  # nothing to compare it with
        for cut in cuts:
            nll, recall = change(cut, "nll", 1, 4), change(cut, "recall", 100, 1)
            share, heads = f"{cut['share']:.2f}", str(cut.get("heads", ""))
            leading = [cut["model"], str(cut["seed"]), share, heads]
            lines.append([*leading, shapes_text(cut), nll, recall])
    return table(["model", "seed", "share", "heads", "widths", "nats", "points of recall"], lines)


def two_hops_table(rows: list[Row]) -> str:
    """Each share of the bytes with one shape for all layers, and with widths by layer."""
    lines = []
    for row in sorted(rows, key=lambda row: (-row["share"], row["seed"])):
        if row["kind"] != "squares":
            lost = change(row, "recall", 100, 1)
            lines.append([f"{row['share']:.2f}", str(row["seed"]), shapes_text(row), lost])
    return table(["share", "seed", "widths", "points of recall"], lines)


def shapes_text(cut: Row) -> str:
    """The shape of all layers, or the widths by layer."""
    shapes = {width.partition("=")[2] for width in cut["widths"].split(",")}
    return shapes.pop() if len(shapes) == 1 else str(cut["widths"]).replace(",", " ")


def main() -> None:
    options = path_parser(__doc__, "results", "uneven", "two_hops", "page").parse_args()
    rows = [
        [json.loads(line) for line in path.read_text().splitlines()]
        for path in (options.results, options.uneven, options.two_hops)
    ]
    pages, uneven, two_hops = rows
    uniform = [row for row in uneven if row["kind"] == "uniform"]
    tables = {"pages": pages_table(pages, uniform), "two-hops": two_hops_table(two_hops)}
    fill([options.page], tables)


if __name__ == "__main__":
    main()
