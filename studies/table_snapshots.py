"""results/snapshots.jsonl -> tables in Markdown: the two seeds of every model and code together.

python studies/table_snapshots.py results/snapshots.jsonl results/snapshots.md
"""

from __future__ import annotations

import json
from typing import Any

from arguments import path_parser

Row = dict[str, Any]


def pooled(rows: list[Row], figure: str) -> str:
    """The mean change over seeds, and half of the interval that both seeds together give."""
    changes = [row[figure] for row in rows if figure in row]
    if not changes:
        return ""
    mean = sum(change[0] for change in changes) / len(changes)
    halves = [(change[2] - change[1]) / 2 for change in changes]
    half = sum(x * x for x in halves) ** 0.5 / len(halves)
    digits = 4 if figure == "nll" or "turns" in figure else 1
    return f"{mean:+.{digits}f} ± {half:.{digits}f}"


def mean_share(rows: list[Row], figure: str) -> str:
    values = [row[figure] for row in rows if row.get(figure) is not None]
    if not values:
        return ""
    mean = sum(values) / len(values)
    return f"{mean:.1f}" if figure == "rank" else f"{100 * mean:.1f} %"


def group(rows: list[Row], part: str) -> dict[tuple[str, str, str], list[Row]]:
    """(model, code, metric) -> the rows of its seeds, in the order of the file."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        if row["part"] == part:
            key = (row["model"], str(row["code"]), row["metric"])
            groups.setdefault(key, []).append(row)
    return dict(sorted(groups.items(), key=lambda item: item[0][0]))


def table(header: list[str], lines: list[list[str]]) -> str:
    rows = [header, ["---"] * len(header), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    options = path_parser(__doc__, "results", "out").parse_args()
    rows = [json.loads(line) for line in options.results.read_text().splitlines()]
    frontier = []
    for (model, code, metric), seeds in group(rows, "frontier").items():
        shares = [mean_share(seeds, name) for name in ("share", "convolution", "rank")]
        losses = [pooled(seeds, name) for name in ("nll", "recall 32")]
        frontier.append([model, code, metric, str(len(seeds)), *shares, *losses])
    turns = []
    for (model, code, metric), seeds in group(rows, "turns").items():
        losses = [pooled(seeds, name) for name in ("first turns", "last turns", "recall 32")]
        turns.append([model, code, metric, str(len(seeds)), *losses])
    lengths = []
    for (model, code, metric), seeds in group(rows, "lengths").items():
        tokens = [name for name in seeds[0] if name.isdecimal()]
        shares = [f"{100 * sum(s[n][0] for s in seeds) / len(seeds):.1f} %" for n in tokens]
        lengths.append(
            [model, code, metric, ", ".join(map(": ".join, zip(tokens, shares, strict=True)))]
        )
    start = ["model", "code", "metric"]
    frontier_columns = ["seeds", "share", "convolution", "rank", "NLL", "recall 32"]
    sections = {
        "Bytes and losses": table([*start, *frontier_columns], frontier),
        "32 turns": table([*start, "seeds", "NLL, first 8", "NLL, last 8", "recall 32"], turns),
        "By tokens read": table([*start, "share"], lengths),
    }
    text = "\n\n".join(f"## {title}\n\n{body}" for title, body in sections.items())
    options.out.write_text(f"# Stored states by code\n\n{text}\n")


if __name__ == "__main__":
    main()
