"""The results file of the kit, and a page that compares results files with our tables.

python studies/gpu/results.py results.json [results.json ...] -o results/gpu.md
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

import statetrim as st
from plan import Kit, Step
from statetrim.maths.paired import Pairs, difference_interval

_INTERVAL = "{:+.4f} ({:+.4f} to {:+.4f})"
_RECOVERY = Path(__file__).parents[2] / "results/recovery.jsonl"


def collect(kit: Kit, plan: Sequence[Step], done: Mapping[str, Mapping[str, Any]]) -> None:
    """Write WORK/results.json from what exists so far; written under another name, then renamed."""
    records = {
        "model": kit.hub_id or st.open(kit.model).config.get("model_type"),
        "environment": st.doctor().as_json(),
        "settings": {"tokens": kit.tokens, "length": kit.length, "limit": kit.limit},
        "steps": [_step_record(step, done.get(step.name)) for step in plan],
        "scores": _scores(kit) + _lm_eval_scores(kit),
        "stored_states": _json(kit.path("snapshots.json"), "codes", "frontier"),
    }
    partial = kit.path("results.json.partial")
    partial.write_text(json.dumps(records, indent=1) + "\n")
    os.replace(partial, kit.path("results.json"))


def _step_record(step: Step, row: Mapping[str, Any] | None) -> dict[str, Any]:
    """Without the error's text, which may name files."""
    ended = row["ended"] if row else "not reached"
    return {"name": step.name, "seconds": row["seconds"] if row else 0.0, "ended": ended}


def _scores(kit: Kit) -> list[dict[str, Any]]:
    """Each metric of each model, and the interval of its difference from the original."""
    rows = []
    for path in sorted(kit.work.glob("scores-*.json")):
        scores = st.Scores.load(path)
        for score in scores.scores:
            row: dict[str, Any] = {"model": _model_name(score.model, scores.baseline)}
            row |= {"task": score.task, "metric": score.metric, "unit": score.unit}
            row |= {"value": score.value, "samples": len(score.samples)}
            if score.model != scores.baseline:
                pairs = scores.pairs(score.model, score.task, score.metric)
                interval = difference_interval([pairs])
                row["difference"] = [interval.estimate, interval.low, interval.high]
            rows.append(row)
    return rows


def _model_name(name: str, baseline: str) -> str:
    """The kit's own name of a model: paths of the user's machine are not written."""
    return "original" if name == baseline else Path(name).name.removeprefix("fitted-")


def _lm_eval_scores(kit: Kit) -> list[dict[str, Any]]:
    """Rows like those of `_scores`, from the files of `ask_lm_eval.py`."""
    rows = []
    for path in sorted(kit.work.glob("lm-eval-*.json")):
        content = json.loads(path.read_text())
        prefix = f"lm-eval-{content['task']}-"
        original = _json(kit.path(f"{prefix}original.json"), "samples") or {}
        name = path.stem.removeprefix(prefix)
        for metric, samples in content["samples"].items():
            row = {"model": name, "task": content["task"], "metric": metric, "unit": "share"}
            row |= {"value": fmean(samples), "samples": len(samples)}
            if name != "original" and metric in original:
                before, after = torch.tensor([original[metric], samples], dtype=torch.float64)
                interval = difference_interval([Pairs(before, after)])
                row["difference"] = [interval.estimate, interval.low, interval.high]
            rows.append(row)
    return rows


def _json(path: Path, *keys: str) -> Any:
    """The first of `keys` in a JSON file; None without the file."""
    if not path.exists():
        return None
    content = json.loads(path.read_text())
    return next((content[key] for key in keys if key in content), None)


def page(files: Sequence[Path]) -> str:
    """A table per results file, and what to compare it with."""
    lines = ["# Measured on GPUs", "", "Made by `studies/gpu/results.py` from results files.", ""]
    for file in files:
        records = json.loads(file.read_text())
        devices = ", ".join(records["environment"]["gpus"]) or "no GPU"
        lines += [f"## {records['model']} ({devices})", ""]
        lines += [
            "| task | model | value | difference from the original (perplexity: nats) |",
            "|---|---|---:|---:|",
        ]
        for row in records["scores"]:
            cell = _INTERVAL.format(*row["difference"]) if "difference" in row else ""
            task = f"{row['task']} {row['metric']}"
            lines.append(f"| {task} | {row['model']} | {row['value']:.4f} | {cell} |")
        lines += ["", "| state stored as | bytes | loss, nats |", "|---|---:|---:|"]
        for row in records["stored_states"] or ():
            loss = _INTERVAL.format(*row["loss"])
            lines.append(f"| {row['code']} | {row['share']:.1%} | {loss} |".replace("%", " %"))
        missing = [step for step in records["steps"] if step["ended"] != "done"]
        lines += ["", "Steps that did not end: " + (_listed(missing) or "none") + ".", ""]
    return "\n".join(lines + _our_rows())


def _listed(missing: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{step['name']} ({step['ended']})" for step in missing)


def _our_rows() -> list[str]:
    """The recovery of our own small model, from its committed results."""
    rows = [json.loads(line) for line in _RECOVERY.read_text().splitlines()]
    lines = ["## Ours, a model of 4.5M parameters", "", "| method | kept | NLL before | after |"]
    lines.append("|---|---:|---:|---:|")
    for row in rows:
        if {"before", "after"} <= row.keys():
            cells = (row["method"], f"{row['keep']:.0%}", f"{row['before']['nll']:.4f}")
            lines.append(f"| {' | '.join(cells)} | {row['after']['nll']:.4f} |")
    return [*lines, ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    options.output.write_text(page(options.files))


if __name__ == "__main__":
    main()
