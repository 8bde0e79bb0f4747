"""results/speech.jsonl -> the tables of results/speech.md: what cuts change in the speech model.

python studies/table_speech.py results/speech.jsonl results/speech.md
"""

from __future__ import annotations

import json
from statistics import mean
from typing import Any

from arguments import path_parser
from plot_methods import table
from plot_shapes import fill

Row = dict[str, Any]


def cell(rows: list[Row], figure: str, scale: float, digits: int) -> str:
    """Mean over samples of clips, with the lowest and highest end of their intervals."""
    estimates, lows, highs = zip(*(row[figure] for row in rows), strict=True)
    numbers = (mean(estimates), min(lows), max(highs))
    estimate, low, high = (f"{scale * number:.{digits}f}" for number in numbers)
    return f"{estimate} ({low} to {high})"


def losses_table(rows: list[Row]) -> str:
    """A line per cut; widths by layer may differ between samples."""
    by_cut: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        kept = row.get("to") or f"{row['share']:.0%} of the keys"
        by_cut.setdefault((row["axis"], kept, row["method"]), []).append(row)
    lines = []
    for cut, same in by_cut.items():
        lines.append([*cut, cell(same, "kl", 1, 4), cell(same, "other class", 100, 1)])
    return table(["axis", "kept", "method", "KL, nats", "frames with another class, %"], lines)


def main() -> None:
    options = path_parser(__doc__, "results", "page").parse_args()
    rows = [json.loads(line) for line in options.results.read_text().splitlines()]
    fill([options.page], {"losses": losses_table(rows)})


if __name__ == "__main__":
    main()
