"""The tables of docs/recall.md, from the lines that mixes.py and layers.py wrote.

python studies/recall/tables.py results/recall docs/recall.md
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from judge import LOADS

Row = dict[str, Any]


def table(header: list[str], rows: list[list[str]]) -> str:
    rule = ["---"] + ["---:"] * (len(header) - 1)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [header, rule, *rows])


def lines_of(folder: Path, kind: str) -> list[Row]:
    paths = sorted(folder.glob(f"{kind}-*.jsonl"))
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def loss(row: Row) -> str:
    _, low, high = row["nll"]
    return f"{row['increase'][0]:+.4f} ± {(high - low) / 2:.4f}"


def recall(row: Row) -> str:
    return " / ".join(f"{row[f'recall {pairs}'][0]:.3f}" for pairs in LOADS)


def mixes_table(rows: list[Row]) -> str:
    """Both axes at half of the bytes, refitted on the mix that chose the channels."""
    cells = []
    for row in rows:
        if row["shape"] == "original":
            cells.append([row["model"], "original", "", "", recall(row)])
        elif row["shape"] == "1/2 balanced" and row["refit"] == row["mix"]:
            cells.append([row["model"], row["method"], row["mix"], loss(row), recall(row)])
    header = ["model", "method", "made", "NLL", f"recall at {' / '.join(map(str, LOADS))} pairs"]
    return table(header, cells)


def layers_table(rows: list[Row]) -> str:
    """Uniform widths beside the first layer whole, of as many bytes, refitted on text."""
    cells = []
    for row in rows:
        if row["refit"] == "text" and row["kind"] in ("uniform", "first whole"):
            first, second = ("x".join(map(str, width)) for width in row["widths"][:2])
            widths = first if first == second else f"{first}, then {second}"
            part = f"{row['bytes']:.0%}"
            cells.append([row["model"], row["axis"], part, widths, loss(row), recall(row)])
    header = ["model", "axis", "of the bytes", "widths", "NLL", "recall at 16 / 32 / 63 pairs"]
    return table(header, cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("page", type=Path)
    options = parser.parse_args()
    text = options.page.read_text()
    for name, content in (
        ("mixes", mixes_table(lines_of(options.folder, "mixes"))),
        ("layers", layers_table(lines_of(options.folder, "layers"))),
    ):
        place = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
        text = re.sub(place, rf"\g<1>{content}\n\g<2>", text, flags=re.DOTALL)
    options.page.write_text(text)


if __name__ == "__main__":
    main()
