"""results/snapshots.jsonl -> the tables of results/snapshots.md; the seeds of a line are one row.

python studies/table_snapshots.py results/snapshots.jsonl results/snapshots.md
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from arguments import path_parser
from compare_snapshots import DEFAULT
from compare_snapshots_cuts import CODES

Row = dict[str, Any]
Cell = Callable[[list[Row]], str]
LENGTHS = ("64", "128", "256", "512", "1024")


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def change(figure: str, digits: int) -> Cell:
    """The mean change over seeds, and half of the interval that all seeds together give."""

    def cell(rows: list[Row]) -> str:
        halves = [(row[figure][2] - row[figure][1]) / 2 for row in rows]
        half = sum(x * x for x in halves) ** 0.5 / len(halves)
        return f"{mean([row[figure][0] for row in rows]):+.{digits}f} ± {half:.{digits}f}"

    return cell


def divergence(rows: list[Row]) -> str:
    """KL in thousandths, to two digits."""
    low, middle, high = (
        float(f"{1000 * mean([row['kl'][n] for row in rows]):.2g}") for n in (1, 0, 2)
    )
    return f"{middle:g} ({low:g} to {high:g})"


def share(figure: str) -> Cell:
    return lambda rows: f"{100 * mean([row[figure] for row in rows]):.1f} %"


def share_at(length: str) -> Cell:
    return lambda rows: f"{100 * mean([row[length][0] for row in rows]):.1f} %"


def rank(rows: list[Row]) -> str:
    return "" if rows[0]["rank"] is None else f"{mean([row['rank'] for row in rows]):.1f}"


def code_name(row: Row) -> str:
    """ "int8", "within 0.05", or "within 0.05, metric"."""
    if isinstance(row["code"], str):
        return row["code"]
    return f"within {row['code']}" + (", metric" if row["metric"] != "none" else "")


CODE: dict[str, Cell] = {
    "model": lambda rows: rows[0]["model"],
    "code": lambda rows: code_name(rows[0]),
}
BYTES: dict[str, Cell] = {"states": share("share")}
OF_ORIGINAL: dict[str, Cell] = {"states, of the original's": share("share")}
KL: dict[str, Cell] = {"KL, 0.001 nats": divergence}
LOSSES = KL | {"NLL, nats": change("nll", 4), "recall, points": change("recall 32", 1)}
SPEECH = KL | {"frames of another class, %": change("other class", 2)}
SEEDS: dict[str, Cell] = {"seeds": lambda rows: str(len(rows))}
METRIC: dict[str, Cell] = {
    "model": CODE["model"],
    "metric": lambda rows: rows[0]["metric"],
    "tolerance": lambda rows: str(rows[0]["code"]),
    "states": BYTES["states"],
}
TURNS = {
    "NLL, first 8 turns": change("first turns", 4),
    "NLL, last 8": change("last turns", 4),
    "recall, points": change("recall 32", 1),
}


def by_code(row: Row) -> bool:
    """Without a metric, or in the default one, which has no keys for Mamba-2."""
    return row["metric"] in ("none", "query" if row["part"] == "audio" else DEFAULT)


def by_metric(row: Row) -> bool:
    return row["code"] in (0.05, 0.1)


def with_cuts(row: Row) -> bool:
    """Cuts, and the original in the codes that cuts are measured in."""
    return (row["code"], row["metric"]) in CODES


TABLES: dict[str, tuple[str, Callable[[Row], bool], dict[str, Cell]]] = {
    "codes": ("frontier", by_code, CODE | BYTES | {"rank": rank} | LOSSES | SEEDS),
    "metrics": ("frontier", by_metric, METRIC | LOSSES),
    "turns": ("turns", by_code, CODE | TURNS | SEEDS),
    "lengths": ("lengths", by_code, CODE | {name: share_at(name) for name in LENGTHS}),
    "speech": ("audio", by_code, CODE | BYTES | {"rank": rank} | SPEECH | SEEDS),
    "speech metrics": ("audio", by_metric, METRIC | SPEECH),
    "cuts": ("cut frontier", with_cuts, CODE | OF_ORIGINAL | LOSSES | SEEDS),
}  # fmt: skip


def table(rows: list[Row], columns: dict[str, Cell]) -> str:
    """One line for each model, code and metric, the largest copies first; cuts with their
    original."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["model"], str(row["code"]), row["metric"]), []).append(row)

    def order(seeds: list[Row]) -> tuple[str, float]:
        model = seeds[0]["of" if "of" in seeds[0] else "model"]
        return model, -mean([row.get("share", 0.0) for row in seeds])

    lines = [
        [cell(seeds) for cell in columns.values()] for seeds in sorted(groups.values(), key=order)
    ]
    return "\n".join(
        f"| {' | '.join(x)} |" for x in (list(columns), ["---"] * len(columns), *lines)
    )


def main() -> None:
    options = path_parser(__doc__, "results", "document").parse_args()
    rows = [json.loads(line) for line in options.results.read_text().splitlines()]
    text = options.document.read_text()
    for place, (parts, chosen, columns) in TABLES.items():
        body = table([row for row in rows if row["part"] in parts.split() and chosen(row)], columns)
        start, _, rest = text.partition(f"<!-- {place} -->")
        end = rest.partition("<!-- end -->")[2]
        text = f"{start}<!-- {place} -->\n\n{body}\n\n<!-- end -->{end}"
    options.document.write_text(text)


if __name__ == "__main__":
    main()
