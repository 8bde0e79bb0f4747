"""results/parts.jsonl -> the table of results/parts.md: how far served logits are from the model's.

python studies/table_parts.py results/parts.jsonl results/parts.md
"""

from __future__ import annotations

import json
from typing import Any

from arguments import path_parser
from plot_methods import table
from plot_shapes import fill

HOW = {
    "parts": "in parts",
    "undivided": "undivided",
    "swapped": "fault: two parts swapped",
    "shared": "fault: two parts share a cache",
}
MANY_BLOCKS = 1000  # with fewer, requests are preempted


def kind(row: dict[str, Any]) -> str:
    if row["how"] == "parts" and not row["parts"]:
        return "no wide layer"
    extra = f", {row['ranks']} processes" if row["ranks"] > 1 else ""
    small = f", {row['blocks']} blocks" if row["blocks"] < MANY_BLOCKS else ""
    return HOW[row["how"]] + extra + small


def differences_table(rows: list[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        for name, request in row["requests"].items():
            same = round(request["same_choice"] * request["computed"])
            lines.append(
                [
                    row["model"], kind(row), name + (", preempted" if request["preempted"] else ""),
                    str(request["cached"]), f"{request['mean_difference']:.4f}",
                    f"{request['largest_difference']:.3f}", f"{same} of {request['computed']}",
                ]
            )  # fmt: skip
    header = [
        "model",
        "layers",
        "request",
        "cached tokens",
        "mean difference",
        "largest",
        "same choice",
    ]
    return table(header, lines)


def startup_table(rows: list[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        if row["how"] == "parts":
            counts = [row["blocks_and_sequences"][name] for name in ("vllm", "statetrim")]
            shown = [f"{blocks} blocks, {sequences:.4f}" for blocks, sequences in counts]
            line = [row["model"], str(row["ranks"]), *shown]
            if line not in lines:
                lines.append(line)
    return table(["model", "processes", "vLLM", "statetrim"], lines)


def main() -> None:
    options = path_parser(__doc__, "results", "page").parse_args()
    rows = [json.loads(line) for line in options.results.read_text().splitlines()]
    fill([options.page], {"differences": differences_table(rows), "startup": startup_table(rows)})


if __name__ == "__main__":
    main()
