"""Write what the interpreted runs found into the engine matrix and into results/kernels.md.

    python tools/kernels/record.py

`results/interpreted.jsonl` decides the rows of vLLM and SGLang in `engines_compiled.json`: one that
serves a shape becomes `interpreted`, or `wrong` if a value differed. The end of the page shows all
three files results/interpreted*.jsonl, and the rows of the matrix by kind of evidence.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ROWS = ROOT / "src/statetrim/serving/engines_compiled.json"
HAND_WRITTEN_ROWS = ROWS.with_name("engines.json")
PAGE = ROOT / "results/kernels.md"
TOLERANCE = (
    0.02  # of the largest value: inputs and outputs are bfloat16, with steps of 0.004 to 0.008
)
COMMANDS = {
    "calibrate": "calibrate", "prune": "select, prune", "check": "check", "refit": "refit",
    "evaluate": "evaluate", "grad": "grad", "recover": "recover", "trim": "trim",
    "heads": "whole heads", "uneven": "by layer",
}  # fmt: skip
RUN_ON_A_CPU = ("delta_net", "gated_deltanet", "kda")
"""Types of fla that `statetrim.portable` runs as well."""
NO_CUT = "RuntimeError: there is no cut"
MARK = "<!-- tables: tools/kernels/record.py -->\n"
EVIDENCE = ("run", "interpreted", "kernel", "compiled", "source", "report")

Line = dict[str, Any]


def lines_of(name: str) -> list[Line]:
    """The lines of a file in results/."""
    return [json.loads(line) for line in (ROOT / "results" / name).read_text().splitlines()]


def largest_difference(line: Line) -> float:
    """Of all steps whose kernels took the shape."""
    return float(max(value for value in line["differences"].values() if value is not None))


def largest_differences(lines: Iterable[Line]) -> dict[tuple[str, str], float]:
    """(steps, shape) -> the largest difference of the runs without a planted fault."""
    largest: dict[tuple[str, str], float] = {}
    for line in lines:
        if "fault" not in line:
            key = line["steps"], line["shape"]
            largest[key] = max(largest.get(key, 0.0), largest_difference(line))
    return largest


def with_evidence(row: Line, differences: dict[tuple[str, str], float]) -> Line:
    """The row with what the interpreted run of its shape found. A row that refuses a shape remains
    `compiled`: the interpreter takes kernels that do not compile."""
    largest = differences.get((row["engine"].lower(), row["shape"][0]))
    if largest is None:
        return row
    agreement = f"within {largest:.1g} of a float64 recurrence: results/interpreted.jsonl"
    compiled = row["source"].partition("; interpreted")[0]
    if row["verdict"] not in ("fast", "fallback", "wrong"):
        return row | {"source": f"{compiled}; interpreted, the other kernels are {agreement}"}
    verdict = row["verdict"] if largest <= TOLERANCE else "wrong"
    source = f"{compiled}; interpreted, {agreement}"
    return row | {"evidence": "interpreted", "source": source, "verdict": verdict}


def markdown_table(header: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    cells = [list(header)]
    cells += [[str(cell) for cell in row] for row in rows]
    lines = ["| " + " | ".join(row) + " |" for row in cells]
    lines.insert(1, "|" + "---|" * len(cells[0]))
    return "\n".join(lines) + "\n"


def table_of_commands(lines: list[Line]) -> str:
    """Model types: which commands were run, and how."""
    results = {(line["type"], line["command"]): line["result"] for line in lines}
    rows = []
    for model_type in sorted({line["type"] for line in lines}):
        missing = [
            title
            for command, title in COMMANDS.items()
            if results.get((model_type, command)) != "run"
        ]
        interpreted = f"all but {', '.join(missing)}" if missing else "all"
        run = "all" if model_type in RUN_ON_A_CPU else "none"
        rows.append([f"`{model_type}`", run, interpreted])
    return markdown_table(["model type", "run", "interpreted"], rows)


def reasons(lines: list[Line]) -> str:
    """What stopped the commands that have a dash, as a list."""
    stopped = [
        f"- `{line['type']}`, {COMMANDS[line['command']]}: {line['result']}\n"
        for line in lines
        if line["command"] in COMMANDS and line["result"] not in ("run", NO_CUT)
    ]
    return "".join(stopped)


def table_of_checks(lines: list[Line]) -> str:
    """What the checks of the cuts measured: of channels, of whole heads and by layer."""
    measured = {(line["type"], line["command"]): line for line in lines}
    columns = [
        ("check", "cut = masked"),
        ("heads", "cut = masked"),
        ("uneven", "cut = masked"),
        ("check", "prefill = decode"),
        ("check", "prefill = decode, original"),
    ]
    rows = []
    for model_type in sorted({line["type"] for line in lines}):
        values = [measured[model_type, command].get(name) for command, name in columns]
        cells = ["-" if value is None else f"{value:.1e}" for value in values]
        rows.append([f"`{model_type}`", *cells])
    header = ["model type", "cut = masked", COMMANDS["heads"], COMMANDS["uneven"]]
    return markdown_table([*header, "prefill = decode", "original"], rows)


def table_of_shapes(lines: list[Line]) -> str:
    """The largest difference of each shape and planted fault, and what refused a shape."""
    # Runs with planted faults repeat the one without.
    runs = {(line["steps"], line["shape"], line.get("fault", "")): line for line in lines}
    rows = []
    for steps in dict.fromkeys(line["steps"] for line in lines):
        shapes, faults, refused = [], [], dict[str, list[str]]()
        for (run_steps, shape, fault), line in runs.items():
            if run_steps != steps:
                continue
            group = faults if fault else shapes
            group.append(f"{fault or shape} {largest_difference(line):.2g}")
            names = [name for name, value in line["differences"].items() if value is None]
            if names:
                refused.setdefault(", ".join(names), []).append(shape)
        refusals = [f"{names}: {', '.join(sizes)}" for names, sizes in refused.items()]
        rows.append([steps, ", ".join(shapes), ", ".join(faults), "; ".join(refusals)])
    return markdown_table(["kernels of", "shapes", "planted faults", "refused"], rows)


def table_of_models(lines: list[Line]) -> str:
    """Engines and, once for each model, transformers in bfloat16."""
    rows: list[list[Any]] = []
    for line in lines:
        for name in ("engine", "transformers in bfloat16"):
            if name in line:
                measured = line[name]
                row = [
                    line["steps"] if name == "engine" else name,
                    line["model"],
                    line.get("fault", ""),
                    measured["mean difference of a logit"],
                    measured["largest"],
                    f"{measured['same choice']} of {line['tokens']}",
                    f"{measured['recall']} ({line['recall']} of {line['answers']})",
                ]
                if row not in rows:
                    rows.append(row)
    header = ("kernels of", "model", "planted fault", "mean difference", "largest", "same choice")
    return markdown_table([*header, "recall (float32)"], rows)


def table_of_evidence(rows: list[Line]) -> str:
    """Rows of the matrix by kind of evidence."""
    counts = Counter((row["engine"], row["evidence"]) for row in rows)
    engines = ("vLLM", "SGLang")
    table = [[engine, *(counts[engine, kind] for kind in EVIDENCE)] for engine in engines]
    return markdown_table(["engine", *EVIDENCE], table)


def tables(rows: list[Line]) -> str:
    """The generated part of results/kernels.md."""
    fla, shapes = lines_of("interpreted-fla.jsonl"), lines_of("interpreted.jsonl")
    models = lines_of("interpreted-model.jsonl")
    rows = rows + json.loads(HAND_WRITTEN_ROWS.read_text())["rows"]
    seconds = sum(line["cpu_seconds"] for line in [*fla, *shapes, *models])
    return f"""
## Commands by model type

Types that transformers runs are run on a CPU by the tests. Types of fla:

run: on a CPU, by `statetrim.portable`. interpreted: through fla's own layers and Triton kernels.
Selection by weights and pruning need no kernel, and run for every type. All runs of this page
together took {seconds / 60:.0f} minutes of CPU time. The commands are
{", ".join(COMMANDS.values())}.

{table_of_commands(fla)}
What stopped the others:

{reasons(fla)}
Largest differences of the cuts, as a share of the largest value: cut and masked original, also of
whole heads and by layer, then prefill and decoding, also of the original.

{table_of_checks(fla)}
## Kernels of engines by shape

Each shape and each planted fault (at 32x32) with the largest difference of any step.

{table_of_shapes(shapes)}
## Trained models

{table_of_models(models)}
## Rows of the engine matrix

By how their verdict is known.

{table_of_evidence(rows)}"""


def main() -> None:
    differences = largest_differences(lines_of("interpreted.jsonl"))
    rows = [with_evidence(row, differences) for row in json.loads(ROWS.read_text())["rows"]]
    ROWS.write_text(json.dumps({"rows": rows}, indent=2) + "\n")
    written_by_hand = PAGE.read_text().partition(MARK)[0]
    PAGE.write_text(written_by_hand + MARK + tables(rows))


if __name__ == "__main__":
    main()
