"""The tables of results/parts.md: how far served logits are from the model's.

    python studies/parts.py page

`just check-parts` adds the lines of results/parts.jsonl.
"""

from __future__ import annotations

from pathlib import Path

from runner import Row, fill, read_rows, start, table

HOW = {
    "parts": "in parts",
    "undivided": "undivided",
    "swapped": "fault: two parts swapped",
    "shared": "fault: two parts share a cache",
}
MANY_BLOCKS = 1000  # with fewer, requests are preempted


def kind(row: Row) -> str:
    if row["how"] == "parts" and not row["parts"]:
        return "no wide layer"
    extra = f", {row['ranks']} processes" if row["ranks"] > 1 else ""
    small = f", {row['blocks']} blocks" if row["blocks"] < MANY_BLOCKS else ""
    return HOW[row["how"]] + extra + small


def differences_table(rows: list[Row]) -> str:
    """Every request of the runs in one process; the longest of two processes and of faults."""
    lines = []
    for row in rows:
        is_plain = row["how"] == "parts" and row["ranks"] == 1
        for name, request in row["requests"].items():
            if not is_plain and name != "long":
                continue
            same = round(request["same_choice"] * request["computed"])
            lines.append(
                [
                    row["model"], kind(row), name + (", preempted" if request["preempted"] else ""),
                    str(request["cached"]), f"{request['mean_difference']:.4f}",
                    f"{request['largest_difference']:.3f}", f"{same} of {request['computed']}",
                ]
            )  # fmt: skip
    header = ["model", "layers", "request", "cached tokens", "mean difference", "largest"]
    return table([*header, "same choice"], lines)


def startup_table(rows: list[Row]) -> str:
    lines = []
    for row in rows:
        if row["how"] == "parts":
            counts = [row["blocks_and_sequences"][name] for name in ("vllm", "statetrim")]
            shown = [f"{blocks} blocks, {sequences:.4f}" for blocks, sequences in counts]
            line = [row["model"], str(row["ranks"]), *shown]
            if line not in lines:
                lines.append(line)
    return table(["model", "processes", "vLLM", "statetrim"], lines)


def page(results: Path) -> None:
    rows = read_rows(results / "parts.jsonl")
    contents = {"differences": differences_table(rows), "startup": startup_table(rows)}
    fill(results / "parts.md", contents)


if __name__ == "__main__":
    start(page)
