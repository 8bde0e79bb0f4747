"""The paper's scale by one command, for someone with a GPU: one model in, one results file out.

    python studies/gpu/run.py --model Qwen/Qwen3.5-0.8B --budget 2h --work WORK [--dry-run]

Calibrates, sweeps one shape for all layers and widths by layer, stores states, evaluates, recovers
within the budget, and serves in vLLM if it is installed. A step that fails does not stop the rest;
a step that does not fit in the time left is not started. After an interruption the same command
resumes. The results are in WORK/results.json: versions, devices and intervals, without names of
files or machines. `results.py` compares them with our tables.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import subprocess
import time
from pathlib import Path

import statetrim as st
from estimate import print_estimate, seconds_of_pass
from plan import Kit, Step, steps
from results import collect

_UNITS = {"s": 1, "m": 60, "h": 3600}


def parse_budget(text: str) -> float:
    """Seconds of '90s', '30m' or '2h'."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 90s, 30m or 2h")
    return float(match[1]) * _UNITS[match[2]]


def finished_steps(kit: Kit) -> dict[str, dict[str, object]]:
    """The last line about each step; a line that was not written whole is left out."""
    path, rows = kit.path("steps.jsonl"), {}
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        rows[row["name"]] = row
    return rows


def run_step(step: Step, kit: Kit, left: float) -> dict[str, object]:
    """Run one command; what it prints goes to logs/. Returns the line to record."""
    log = kit.path("logs") / f"{step.name.replace(' ', '-')}.log"
    log.parent.mkdir(exist_ok=True)
    began = time.monotonic()
    try:
        command = step.command(kit, left)
        with log.open("w") as file:
            code = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT).returncode
        last = log.read_text(errors="replace").strip().splitlines()[-1:] if code else []
    except (OSError, st.StatetrimError, StopIteration) as error:
        code, last = 1, [f"{type(error).__name__}: {error}"]
    if step.name == "inspect" and not code:
        kit.path(step.makes).write_text(log.read_text())
    row: dict[str, object] = {"name": step.name, "seconds": round(time.monotonic() - began, 1)}
    return row | {"ended": "done" if not code else "failed", "why": " ".join(last)[:300]}


def run(kit: Kit, budget: float) -> None:
    """Run every step that is not done yet, and collect the results after each."""
    original = st.open(kit.model)
    head = original.geometry.head_k_dim, original.geometry.head_v_dim
    plan = steps(kit, head, vllm=importlib.util.find_spec("vllm") is not None)
    kit.work.mkdir(parents=True, exist_ok=True)
    done = finished_steps(kit)
    spent = sum(float(str(row["seconds"])) for row in done.values())
    pass_seconds = seconds_of_pass(original, kit)
    for number, step in enumerate(plan, start=1):
        before = done.get(step.name)
        if before and before["ended"] == "done" and kit.path(step.makes).exists():
            continue
        left = budget - spent
        print(f"{number} of {len(plan)}: {step.name} ({left / 60:.0f} min left)", flush=True)
        if step.passes * pass_seconds > left:
            row: dict[str, object] = {"name": step.name, "seconds": 0.0, "ended": "no time left"}
        else:
            row = run_step(step, kit, left)
        if step.name == "calibrate" and row["ended"] == "done":
            pass_seconds = float(str(row["seconds"])) / step.passes  # measured, not estimated
        spent += float(str(row["seconds"]))
        with kit.path("steps.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        done[step.name] = row
        collect(kit, plan, done)
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
    kit = Kit(
        options.model, options.work.resolve(), options.text, options.heldout, options.data,
        options.device, options.tokens, options.length, options.batch_size, options.limit,
        tuple(options.recover_option),
    )  # fmt: skip
    if options.dry_run:
        print_estimate(kit, options.budget)
    else:
        run(kit, options.budget)


if __name__ == "__main__":
    main()
