"""Write what the interpreted runs found into the engine matrix and into docs/gpu.md.

    python tools/kernels/record.py

`results/interpreted.jsonl` decides the rows of vLLM and SGLang in `engines_compiled.json`: one that
serves a shape becomes `interpreted`, or `wrong` if a value differed.
`results/interpreted-fla.jsonl`
gives the table of model types and commands in docs/gpu.md.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ROWS = ROOT / "src/statetrim/serving/engines_compiled.json"
PAGE = ROOT / "docs/gpu.md"
TOLERANCE = (
    0.02  # of the largest value: inputs and outputs are bfloat16, with steps of 0.004 to 0.008
)
COMMANDS = {
    "calibrate": "calibrate", "prune": "select, prune", "check": "check", "refit": "refit",
    "evaluate": "evaluate", "grad": "grad", "recover": "recover", "trim": "trim",
    "heads": "whole heads",
}  # fmt: skip
START, END = "<!-- interpreted -->\n", "<!-- end -->\n"


def lines_of(name: str) -> list[dict[str, Any]]:
    """The lines of a file in results/."""
    return [json.loads(line) for line in (ROOT / "results" / name).read_text().splitlines()]


def largest_differences(lines: list[dict[str, Any]]) -> dict[tuple[str, str], float]:
    """(steps, shape) -> the largest difference of all steps that the kernels took."""
    return {
        (line["steps"], line["shape"]): max(
            value for value in line["differences"].values() if value is not None
        )
        for line in lines
        if "fault" not in line
    }


def with_evidence(row: dict[str, Any], differences: dict[tuple[str, str], float]) -> dict[str, Any]:
    """The row with the evidence of the interpreted run of its shape; a refusal stays as it was,
    because the interpreter takes kernels that do not compile."""
    largest = differences.get((row["engine"].lower(), row["shape"][0]))
    if largest is None or row["verdict"] not in ("fast", "fallback", "wrong"):
        return row
    source = row["source"].partition("; interpreted")[0]
    source += (
        f"; interpreted, within {largest:.1g} of a float64 recurrence: results/interpreted.jsonl"
    )
    verdict = row["verdict"] if largest <= TOLERANCE else "wrong"
    return row | {"evidence": "interpreted", "source": source, "verdict": verdict}


def fla_table(lines: list[dict[str, Any]]) -> str:
    """Model types x commands: `interpreted`, or a dash for one that did not run."""
    results = {(line["type"], line["command"]): line["result"] for line in lines}
    table = [
        "| model type | " + " | ".join(COMMANDS.values()) + " |",
        "|---|" + "---|" * len(COMMANDS),
    ]
    for model_type in sorted({line["type"] for line in lines}):
        ran = [results.get((model_type, command)) == "run" for command in COMMANDS]
        cells = ["interpreted" if each else "-" for each in ran]
        table.append(f"| `{model_type}` | " + " | ".join(cells) + " |")
    return "\n".join(table) + "\n"


def main() -> None:
    differences = largest_differences(lines_of("interpreted.jsonl"))
    rows = [with_evidence(row, differences) for row in json.loads(ROWS.read_text())["rows"]]
    ROWS.write_text(json.dumps({"rows": rows}, indent=2) + "\n")
    before, _, rest = PAGE.read_text().partition(START)
    _, _, after = rest.partition(END)
    PAGE.write_text(before + START + fla_table(lines_of("interpreted-fla.jsonl")) + END + after)


if __name__ == "__main__":
    main()
