"""The paper's scale by one command, for someone with a GPU: one model in, one results file out.

    python studies/gpu/run.py --model Qwen/Qwen3.5-0.8B --budget 2h --work WORK [--dry-run]

Calibrates, sweeps one shape for all layers and widths by layer, stores states, evaluates, recovers
within the budget, and serves in vLLM if it is installed. A step that fails does not stop the rest;
a step that does not fit in the time left is not started. After an interruption the same command
resumes; with other options, what depends on them is made again. The results are in
WORK/results.json: versions, devices and intervals, without names of files or machines. `results.py`
compares them with our tables.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import statetrim as st
from estimate import Costs, print_estimate
from plan import Kit, Step, finished_steps, steps
from results import collect
from ssm_checkpoint import stock_model
from statetrim.pipelines.job import file_stamps
from statetrim.pipelines.stage import Stage

_UNITS = {"s": 1, "m": 60, "h": 3600}


def parse_budget(text: str) -> float:
    """Seconds of '90s', '30m' or '2h'."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 90s, 30m or 2h")
    return float(match[1]) * _UNITS[match[2]]


def run_step(step: Step, kit: Kit, left: float) -> dict[str, Any]:
    """Run one command; what it prints goes to logs/. Returns the line to record."""
    log = kit.path("logs") / f"{step.name.replace(' ', '-')}.log"
    log.parent.mkdir(exist_ok=True)
    began = time.monotonic()
    try:
        command = step.command(kit, left)
        with log.open("w") as file:
            code = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT).returncode
        last = log.read_text(errors="replace").strip().splitlines()[-1:] if code else []
    except (OSError, KeyError, st.StatetrimError) as error:
        code, last = 1, [f"{type(error).__name__}: {error}"]
    if step.name == "inspect" and not code:
        kit.path(step.makes).write_text(log.read_text())
    row: dict[str, Any] = {"name": step.name, "seconds": round(time.monotonic() - began, 1)}
    return row | {"ended": "done" if not code else "failed", "why": " ".join(last)[:300]}


def stage_of(step: Step, kit: Kit, original: st.Checkpoint, before: Sequence[Stage]) -> Stage:
    """What a step's output is made from: its command, whatever time is left, the model, the texts,
    and the outputs of earlier steps that the command names."""
    command = step.command(kit, 0.0)
    inputs = [stage for stage in before if str(stage.artifact) in command]
    texts = [file_stamps(Path(text)) for text in (kit.text, kit.heldout) if text]
    lineage = {"command": command, "model": original, "texts": texts}
    return Stage(kit.path(step.makes), lineage, lambda progress: None, inputs)


def run(kit: Kit, budget: float) -> None:
    """Run every step that is not done yet, and collect the results after each."""
    original = st.open(kit.model)
    head = original.geometry.head_k_dim, original.geometry.head_v_dim
    plan = steps(kit, head, vllm=importlib.util.find_spec("vllm") is not None)
    kit.work.mkdir(parents=True, exist_ok=True)
    done = finished_steps(kit)
    spent = sum(row["seconds"] for row in done.values())
    costs, stages = Costs.estimate(original, kit), list[Stage]()
    for number, step in enumerate(plan, start=1):
        row, left = done.get(step.name, {}), budget - spent
        exists = False
        with suppress(KeyError, st.StatetrimError):  # its input is missing: the step will say so
            stages.append(stage_of(step, kit, original, stages))
            stages[-1].start()
            exists = stages[-1].is_current
        if row.get("ended") != "done" or not exists:
            print(f"{number} of {len(plan)}: {step.name} ({left / 60:.0f} min left)", flush=True)
            needed = costs.seconds(step, kit)
            row = {"name": step.name, "seconds": 0.0, "ended": "no time left"}
            if exists:  # ended, and was killed before the line was written
                row |= {"seconds": round(needed, 1), "ended": "done"}
            elif needed <= left:
                row = run_step(step, kit, left)
            spent += row["seconds"]
            with kit.path("steps.jsonl").open("a") as file:
                file.write(f"\n{json.dumps(row)}\n")  # the last line may not be whole
            done[step.name] = row
            collect(kit, plan, done)
        if step.name == "calibrate" and row["ended"] == "done":  # measured, not estimated
            costs = replace(costs, pass_seconds=row["seconds"] / step.passes)
    collect(kit, plan, done)
    failed = [name for name, row in done.items() if row["ended"] != "done"]
    print(f"{kit.path('results.json')}: {len(done) - len(failed)} of {len(plan)} steps done")
    for name in failed:
        print(f"  {name}: {done[name]['ended']} {done[name].get('why', '')}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--model", required=True, help="hub id or directory")
    parser.add_argument("--budget", type=parse_budget, required=True, help="such as 2h")
    parser.add_argument("--work", type=Path, required=True, help="keeps everything for a next run")
    parser.add_argument("--text", default="HuggingFaceFW/fineweb-edu", help="to calibrate on")
    parser.add_argument(
        "--heldout", default="", help="text for perplexity; default: a later part of --text"
    )
    parser.add_argument("--data", type=Path, help="directory with the tasks' files")
    parser.add_argument("--device")
    parser.add_argument("--tokens", type=int, default=2**18, help="of calibration")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--limit", type=int, default=256, help="samples per task")
    parser.add_argument("--recover-option", action="append", default=[], help="of recover")
    parser.add_argument("--dry-run", action="store_true", help="estimate, and run nothing")
    options = parser.parse_args()
    work, hub_id = options.work.resolve(), "" if Path(options.model).exists() else options.model
    try:
        model = stock_model(options.model, work / "model", weights=not options.dry_run)
        kit = Kit(
            model, work, options.text, options.heldout, options.data, options.device,
            options.tokens, options.length, options.batch_size, options.limit,
            tuple(options.recover_option), hub_id,
        )  # fmt: skip
        if options.dry_run:
            print_estimate(kit, options.budget)
        else:
            run(kit, options.budget)
    except st.StatetrimError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
