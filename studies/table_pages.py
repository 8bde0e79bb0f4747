"""results/pages.jsonl -> the table of results/uneven.md: one shape or widths by layer, in vLLM.

python studies/table_pages.py results/pages.jsonl results/uneven.jsonl results/uneven.md
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
            shapes = {width.partition("=")[2] for width in cut["widths"].split(",")}
            widths = shapes.pop() if len(shapes) == 1 else cut["widths"].replace(",", " ")
            nll, recall = change(cut, "nll", 1, 4), change(cut, "recall", 100, 1)
            share, heads = f"{cut['share']:.2f}", str(cut.get("heads", ""))
            lines.append([cut["model"], str(cut["seed"]), share, heads, widths, nll, recall])
    return table(["model", "seed", "share", "heads", "widths", "nats", "points of recall"], lines)


def main() -> None:
    options = path_parser(__doc__, "results", "uneven", "page").parse_args()
    rows = [
        [json.loads(line) for line in path.read_text().splitlines()]
        for path in (options.results, options.uneven)
    ]
    pages, uneven = rows
    uniform = [row for row in uneven if row["kind"] == "uniform"]
    fill([options.page], {"pages": pages_table(pages, uniform)})


if __name__ == "__main__":
    main()
