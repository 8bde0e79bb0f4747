"""Run the demo's story with several seeds of text, calibration and evaluation, and tabulate it.

    python studies/demo_seeds.py results/demo.json results/demo.md --seeds 0 1 2 3 4 5 6 7 8 9

Sizes and steps of the story were chosen on seeds above 100. The first file has an entry per seed;
seeds that it has already are not run again. The table goes into the page.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any
from unittest import mock

from statetrim.commands.demo import run_story
from statetrim.pipelines.demo.story import ModelResult
from statetrim.tasks import recall


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("page", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", required=True)
    arguments = parser.parse_args()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    entries: dict[str, Any] = {}
    if arguments.out.exists():
        entries = json.loads(arguments.out.read_text())
    stock = recall.associations
    for seed in arguments.seeds:
        if str(seed) in entries:
            continue
        # `evaluate` has no seed: everybody measures the same sequences.
        seeded = mock.patch.object(recall, "associations", partial(stock, seed=seed))
        with tempfile.TemporaryDirectory() as folder, seeded:
            began = time.monotonic()
            result = run_story(Path(folder, "demo"), seed=seed, on_step=lambda line: None)
            seconds = time.monotonic() - began
        entries[str(seed)] = {
            "seconds": round(seconds),
            "used": round(result.used_share, 3),
            "answers": {
                name: sum(a == b for a, b in zip(answered, result.prompt.values, strict=True))
                for name, answered in result.answers.items()
            },
            "models": {model.name: summary(model) for model in result.models},
        }
        arguments.out.write_text(json.dumps(entries, indent=1))
        outcomes = [model.verdict.outcome for model in result.models if model.verdict]
        print(f"seed {seed}: {', '.join(map(str, outcomes))}; {seconds:.0f} s", flush=True)
    filled = f"<!-- seeds -->\n\n{table(entries)}\n\n<!-- end -->"
    page = arguments.page.read_text()
    arguments.page.write_text(
        re.sub(r"<!-- seeds -->.*?<!-- end -->", lambda _: filled, page, flags=re.S)
    )


def summary(model: ModelResult) -> dict[str, Any]:
    """The figures of one model, with the intervals of what it lost."""
    losses = {}
    for loss in model.losses:
        interval = (loss.loss.estimate, loss.loss.low, loss.loss.high)
        losses[loss.task] = [round(bound, 3) for bound in interval]
    return {
        "perplexity": round(model.perplexity, 4),
        "recall": round(model.recall, 4),
        "lost": losses,
        "verdict": model.verdict and str(model.verdict.outcome),
    }


def table(entries: dict[str, Any]) -> str:
    """A row per model: smallest, mean and largest figure over the seeds, and its verdicts."""
    lines = ["| model | perplexity, % lost | recall, % | answers of 26 | verdict |"]
    lines.append("| --- | ---: | ---: | ---: | --- |")
    for name in next(iter(entries.values()))["models"]:
        models = [entry["models"][name] for entry in entries.values()]
        lost = [model["lost"].get("text", [0.0])[0] for model in models]
        recall = [100 * model["recall"] for model in models]
        right = [entry["answers"][name] for entry in entries.values() if name in entry["answers"]]
        verdicts = Counter(model["verdict"] for model in models if model["verdict"])
        judged = ", ".join(f"{verdict}: {count}" for verdict, count in verdicts.items())
        lines.append(f"| {name} | {spread(lost)} | {spread(recall)} | {spread(right)} | {judged} |")
    return "\n".join(lines)


def spread(figures: list[float]) -> str:
    """Smallest, mean and largest."""
    if not figures:
        return ""
    return f"{min(figures):.1f}, {mean(figures):.1f}, {max(figures):.1f}"


if __name__ == "__main__":
    main()
