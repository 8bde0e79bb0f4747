"""Every command on a GPU, up to the paper's scale: one model in, one results file out.

    python studies/gpu/run.py --work WORK --budget 15m
    python studies/gpu/run.py --work WORK --budget 2h --model Qwen/Qwen3.5-0.8B [--dry-run]

Without a model it builds a small random one, to see that every command works. Calibrates (whole,
layerwise, spread over GPUs), sweeps one shape for all layers and widths by layer, stores states,
recovers within the budget, evaluates, and serves in vLLM if it is installed. A step that fails does
not stop the rest; one that takes longer than the time left is stopped. After an interruption the
same command resumes; with other options, what depends on them is made again. The results are in
WORK/results.json: versions, devices, times, memory and intervals, without names of files or
machines. `results.py` compares them with our tables.
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
from pathlib import Path
from typing import Any

import torch

import statetrim as st
from plan import Kit, Step, finished_steps, steps
from results import collect
from ssm_checkpoint import stock_model
from statetrim.pipelines.job import file_stamps
from statetrim.pipelines.stage import Stage

_UNITS = {"s": 1, "m": 60, "h": 3600}
SMALL = {
    "vocab_size": 4096, "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 128,
    "linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "full_attention_interval": 4,
}  # fmt: skip
"""Sizes of the random model."""


def parse_budget(text: str) -> float:
    """Seconds of '90s', '30m' or '2h'."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 90s, 30m or 2h")
    return float(match[1]) * _UNITS[match[2]]


def write_small_model(directory: Path) -> None:
    """Write a random model in the Qwen3.5 layout, its tokenizer, and a text of random words."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = AutoConfig.for_model("qwen3_5_text", dtype="bfloat16", **SMALL)
    AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(directory)
    words = {"<end>": 0} | {f"w{i}": i for i in range(1, SMALL["vocab_size"])}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<end>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")
    fast.save_pretrained(directory)
    lines = []
    for row in torch.randint(1, SMALL["vocab_size"], (4000, 100)).tolist():
        lines.append(json.dumps({"text": " ".join(f"w{i}" for i in row)}))
    for name, part in (("text", lines[:3000]), ("heldout", lines[3000:])):
        directory.with_name(f"{name}.jsonl").write_text("\n".join(part))


def run_step(step: Step, kit: Kit, left: float) -> dict[str, Any]:
    """Run one command; what it prints goes to logs/. Returns the line to record."""
    log = kit.path("logs") / f"{step.name.replace(' ', '-')}.log"
    log.parent.mkdir(exist_ok=True)
    row: dict[str, Any] = {"name": step.name, "ended": "failed"}
    began = time.monotonic()
    try:
        command = step.command(kit, left)
        with log.open("w") as file:
            done = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, timeout=left)
        row["ended"] = "failed" if done.returncode else "done"
    except subprocess.TimeoutExpired:
        row["ended"] = "no time left"
    except (OSError, KeyError, st.StatetrimError) as error:
        row["why"] = f"{type(error).__name__}: {error}"[:300]
    printed = log.read_text(errors="replace") if log.exists() else ""
    *lines, last = printed.strip().splitlines() or [""]
    if last.startswith("peak"):
        row["gpu_peak_bytes"] = [int(count) for count in last.split()[1:]]
    if row["ended"] == "failed" and lines:
        row.setdefault("why", lines[-1][:300])
    if step.name == "inspect" and row["ended"] == "done":
        kit.path(step.makes).write_text("\n".join(lines))
    return row | {"seconds": round(time.monotonic() - began, 1)}


def stage_of(step: Step, kit: Kit, original: st.Checkpoint, before: Sequence[Stage]) -> Stage:
    """What a step's output is made from: its command, whatever time is left, the model, the texts,
    and the outputs of earlier steps that the command names."""
    command = step.command(kit, 0.0)
    inputs = [stage for stage in before if str(stage.artifact) in command]
    texts = [file_stamps(Path(text)) for text in (kit.text, kit.heldout) if text]
    lineage = {"command": command, "model": original, "texts": texts}
    return Stage(kit.path(step.makes), lineage, lambda progress: None, inputs)


def planned(kit: Kit, model: st.Checkpoint) -> list[Step]:
    head = model.geometry.head_k_dim, model.geometry.head_v_dim
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return steps(kit, head, gpus=gpus, vllm=importlib.util.find_spec("vllm") is not None)


def run(kit: Kit, budget: float) -> None:
    """Run every step that is not done yet, and collect the results after each."""
    original = st.open(kit.model)
    plan = planned(kit, original)
    kit.work.mkdir(parents=True, exist_ok=True)
    done, stages = finished_steps(kit), list[Stage]()
    spent = sum(row["seconds"] for row in done.values())
    for number, step in enumerate(plan, start=1):
        row, left, exists = done.get(step.name, {}), budget - spent, False
        with suppress(KeyError, st.StatetrimError):  # its input is missing: the step will say so
            stages.append(stage_of(step, kit, original, stages))
            stages[-1].start()
            exists = stages[-1].is_current
        if row.get("ended") == "done" and exists:
            continue
        print(f"{number} of {len(plan)}: {step.name} ({left / 60:.0f} min left)", flush=True)
        row = {"name": step.name, "seconds": 0.0, "ended": "no time left"}
        if exists:  # ended, and was killed before the line was written
            row["ended"] = "done"
        elif left > 0:
            row = run_step(step, kit, left)
        spent += row["seconds"]
        with kit.path("steps.jsonl").open("a") as file:
            file.write(f"\n{json.dumps(row)}\n")  # the last line may not be whole
        done[step.name] = row
        collect(kit, plan, done)
    collect(kit, plan, done)
    failed = [name for name, row in done.items() if row["ended"] != "done"]
    print(f"{kit.path('results.json')}: {len(done) - len(failed)} of {len(plan)} steps done")
    for name in failed:
        print(f"  {name}: {done[name]['ended']} {done[name].get('why', '')}")


def print_plan(kit: Kit) -> None:
    """Print the disk that is needed, and the steps, from the config alone."""
    model = st.open(kit.model, weights=False)
    plan = planned(kit, model)
    copies = sum(step.makes.startswith(("cut-", "fitted-", "recovered")) for step in plan)
    print(f"disk: {copies} times the size of the weights, and the model itself")
    for step in plan:
        print(f"  {step.name} -> {step.makes}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--model", help="hub id or directory; default: a small random one")
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
    parser.add_argument("--dry-run", action="store_true", help="show the steps, and run nothing")
    options = parser.parse_args()
    work = options.work.resolve()
    if options.model is None:
        options.model, options.tokens = str(work / "random" / "model"), 2**14
        if not Path(options.model).exists():
            write_small_model(Path(options.model))
        folder = Path(options.model).parent
        options.text, options.heldout = str(folder / "text.jsonl"), str(folder / "heldout.jsonl")
    hub_id = "" if Path(options.model).exists() else options.model
    try:
        model = stock_model(options.model, work / "model", weights=not options.dry_run)
        kit = Kit(
            model, work, options.text, options.heldout, options.data, options.device,
            options.tokens, options.length, options.batch_size, options.limit,
            tuple(options.recover_option), hub_id,
        )  # fmt: skip
        if options.dry_run:
            print_plan(kit)
        else:
            run(kit, options.budget)
    except st.StatetrimError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
