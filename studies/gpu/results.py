"""The results file of the kit, and a page that compares results files with our tables.

python studies/gpu/results.py results.json [results.json ...] -o results/gpu.md
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import statetrim as st
from plan import Kit, Step
from statetrim.maths.paired import difference_interval

sys.path.append(str(Path(__file__).parents[1]))
from runner import RESULTS, read_rows, table

_INTERVAL = "{:+.4f} ({:+.4f} to {:+.4f})"


def collect(kit: Kit, plan: Sequence[Step], done: Mapping[str, Mapping[str, Any]]) -> None:
    """Write WORK/results.json from what exists so far; written under another name, then renamed.
    The text of an error may name files and is left out."""
    steps = []
    for step in plan:
        row = done.get(step.name, {"seconds": 0.0, "ended": "not reached"})
        kept = {name: row[name] for name in ("seconds", "ended", "gpu_peak_bytes") if name in row}
        steps.append({"name": step.name} | kept)
    records = {
        "model": kit.hub_id or st.open(kit.model).config.get("model_type"),
        "environment": st.doctor().as_json(),
        "settings": {"tokens": kit.tokens, "length": kit.length, "limit": kit.limit},
        "steps": steps,
        "statistics": {name: _difference(kit, name) for name in ("layerwise", "spread")},
        "scores": _scores(kit),
        "stored_states": _json(kit.path("snapshots.json"), "codes", "frontier"),
        "timings": _timings(kit),
    }
    partial = kit.path("results.json.partial")
    partial.write_text(json.dumps(records, indent=1) + "\n")
    os.replace(partial, kit.path("results.json"))


def _difference(kit: Kit, other: str) -> float | None:
    """The largest difference of sums collected otherwise, relative to the largest of each."""
    paths = kit.path("statistics.safetensors"), kit.path(f"{other}.safetensors")
    if not all(path.exists() for path in paths):
        return None
    whole, compared = map(st.Statistics.load, paths)
    largest = 0.0
    for layer, sums in whole.layers.items():
        for name in whole.sum_names:
            a, b = getattr(sums, name), getattr(compared.layers[layer], name)
            largest = max(largest, float((a - b).abs().max() / a.abs().max()))
    return largest


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


def _timings(kit: Kit) -> list[dict[str, Any]]:
    records = _json(kit.path("timings.json"), "records") or []
    return [{key: value for key, value in row.items() if key != "model"} for row in records]


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
        scores, states = [], []
        for row in records["scores"]:
            cell = _INTERVAL.format(*row["difference"]) if "difference" in row else ""
            name = f"{row['task']} {row['metric']}"
            scores.append([name, row["model"], f"{row['value']:.4f}", cell])
        for row in records["stored_states"] or ():
            share = f"{100 * row['share']:.1f} %"
            states.append([row["code"], share, _INTERVAL.format(*row["loss"])])
        missing = [
            f"{step['name']} ({step['ended']})"
            for step in records["steps"]
            if step["ended"] != "done"
        ]
        header = ["task", "model", "value", "difference from the original (perplexity: nats)"]
        lines += [f"## {records['model']} ({devices})", "", table(header, scores, left=2), ""]
        lines += [table(["state stored as", "bytes", "loss, nats"], states), ""]
        lines += [f"Steps that did not end: {', '.join(missing) or 'none'}.", ""]
    return "\n".join([*lines, "## Ours, a model of 4.5M parameters", "", _our_rows(), ""])


def _our_rows() -> str:
    """The recovery of our own small model, from its committed results."""
    rows = []
    for row in read_rows(RESULTS / "recovery.jsonl"):
        nll = [f"{row[when]['nll']:.4f}" for when in ("before", "after")]
        rows.append([row["method"], f"{row['keep']:.0%}", *nll])
    return table(["method", "kept", "NLL before", "after"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    options.output.write_text(page(options.files))


if __name__ == "__main__":
    main()
