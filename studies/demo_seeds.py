"""Run the demo, and the quickstart's `trim`, with several seeds, and tabulate both.

    python studies/demo_seeds.py results/demo.json results/demo.md --seeds 0 1 2 3 4 5 6 7 8 9

A seed orders the text and draws recall sequences and random channels. Sizes and steps of the story
were chosen on seeds above 100. The first file has an entry per seed; what it has already is not run
again. The tables go into the page.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import shlex
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import chdir
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any
from unittest import mock

from statetrim.artifacts.scores import Scores
from statetrim.commands.app import app
from statetrim.commands.demo import muted, run_story
from statetrim.judging.losses import Loss, task_losses
from statetrim.judging.verdict import Verdict
from statetrim.pipelines.demo.material import write_model, write_text
from statetrim.pipelines.demo.story import (
    MEASURED_FROM,
    ORIGINAL,
    QUARTER,
    RANDOM,
    RECOVERY,
    SAMPLES,
    steps,
)
from statetrim.serving.deployment import ship_verdict
from statetrim.storage.checkpoint import open_checkpoint
from statetrim.tasks import recall

QUICKSTART = Path(__file__).parents[1] / "docs" / "quickstart.md"


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
        entry = entries.setdefault(str(seed), {})
        for name, run in (("demo", run_demo), ("recovered", run_recovery), ("trim", run_trim)):
            if name in entry:
                continue
            # `evaluate` has no seed: everybody measures the same sequences.
            seeded = mock.patch.object(recall, "associations", partial(stock, seed=seed))
            with tempfile.TemporaryDirectory() as folder, chdir(folder), seeded:
                began, cpu_began = time.monotonic(), time.process_time()
                entry[name] = run(seed)
                entry[name]["seconds"] = round(time.monotonic() - began)
                entry[name]["cpu_seconds"] = round(time.process_time() - cpu_began)
            arguments.out.write_text(json.dumps(entries, indent=1))
            verdicts = [model["verdict"] for model in entry[name]["models"].values()]
            print(f"seed {seed}, {name}: {verdicts}; {entry[name]['seconds']} s", flush=True)
    page = arguments.page.read_text()
    for name, table in (("demo", demo_table(entries)), ("trim", trim_table(entries))):
        before, begin, rest = page.partition(f"<!-- {name} -->\n\n")
        _, end, after = rest.partition("<!-- end -->")
        page = f"{before}{begin}{table}\n\n{end}{after}"
    arguments.page.write_text(page)


def run_demo(seed: int) -> dict[str, Any]:
    """What the demo's story shows."""
    result = run_story(Path("demo"), seed=seed, on_step=lambda line: None)
    scores, models = Scores.load(Path("demo/scores.json")), {}
    for model in result.models:
        losses = task_losses(scores, model.name) if model.name != ORIGINAL else []
        models[model.name] = summary(model.perplexity, model.recall, losses, model.verdict)
    answers = {
        name: sum(a == b for a, b in zip(answered, result.prompt.values, strict=True))
        for name, answered in result.answers.items()
    }
    return {"used": round(result.used_share, 3), "answers": answers, "models": models}


def run_recovery(seed: int) -> dict[str, Any]:
    """What is left of the loss of QUARTER after the recovery that the demo proposes."""
    write_model(Path(ORIGINAL))
    write_text(Path("text.jsonl"), seed)
    commands = [
        *calibrate_and_cut([QUARTER, RANDOM], seed),
        f"recover {QUARTER} --teacher {ORIGINAL} {RECOVERY} --seed {seed} -o RECOVERED",
        f"evaluate RECOVERED {RANDOM} --baseline {ORIGINAL} --tasks text,mqar --text text.jsonl "
        f"--skip {MEASURED_FROM} --limit {SAMPLES} -o scores.json",
    ]
    with muted(True):
        for command in commands:
            app(shlex.split(command), standalone_mode=False)
    scores, name = Scores.load(Path("scores.json")), "RECOVERED"
    verdict = ship_verdict(scores, name, open_checkpoint(Path(name)))
    perplexity = scores.find(name, "text", "perplexity").value
    recall = scores.find(name, "mqar", "accuracy").value
    return {"models": {name: summary(perplexity, recall, task_losses(scores, name), verdict)}}


def calibrate_and_cut(names: Sequence[str], seed: int) -> list[str]:
    """The demo's commands that make these cuts."""
    commands = [command for step in steps(seed) for command in step.commands]
    own = [f"calibrate {ORIGINAL} "]
    for name in names:
        own += [f" {name}.json", f" {name}-"]
    return [command for command in commands if any(part in command for part in own)]


def run_trim(seed: int) -> dict[str, Any]:
    """What `trim` finds, as the quickstart calls it, with a seed."""
    write_model(Path("MODEL"))
    write_text(Path("text.jsonl"), seed)
    (command,) = re.findall(r"^\$ statetrim (trim .*OUT)$", QUICKSTART.read_text(), flags=re.M)
    with muted(True):
        app([*shlex.split(command), "--seed", str(seed)], standalone_mode=False)
    scores, cut = Scores.load(Path("OUT/statetrim/scores.json")), open_checkpoint(Path("OUT"))
    models = {}
    original, final = scores.models[:2]
    for label, name in (("MODEL", original), ("OUT", final), ("rand", "rand")):
        models[label] = summary(
            scores.find(name, "text", "perplexity").value,
            scores.find(name, "mqar", "accuracy").value,
            task_losses(scores, name) if name != original else [],
            ship_verdict(scores, name, cut) if name == final else None,
        )
    return {"shape": cut.geometry.shape.replace(" x ", "x"), "models": models}


def summary(
    perplexity: float, recall: float, losses: Sequence[Loss], verdict: Verdict | None
) -> dict[str, Any]:
    """The figures of one model, with the intervals of what it lost."""
    lost = {}
    for loss in losses:
        interval = (loss.loss.estimate, loss.loss.low, loss.loss.high)
        lost[loss.task] = [round(bound, 3) for bound in interval]
    return {
        "perplexity": round(perplexity, 4),
        "recall": round(recall, 4),
        "lost": lost,
        "verdict": verdict and str(verdict.outcome),
    }


def demo_table(entries: dict[str, Any]) -> str:
    """A row per model: smallest, mean and largest figure over the seeds, and its verdicts."""
    demos = [{**entry["demo"]} for entry in entries.values()]
    for demo, entry in zip(demos, entries.values(), strict=True):
        demo["models"] = {**demo["models"], **entry["recovered"]["models"]}
    lines = ["| model | perplexity, % lost | recall, % | answers of 26 | verdict |"]
    lines.append("| --- | ---: | ---: | ---: | --- |")
    for name in demos[0]["models"]:
        models = [demo["models"][name] for demo in demos]
        lost = [model["lost"].get("text", [0.0])[0] for model in models]
        recall = [100 * model["recall"] for model in models]
        right = [demo["answers"][name] for demo in demos if name in demo["answers"]]
        verdicts = Counter(model["verdict"] for model in models if model["verdict"])
        judged = ", ".join(f"{verdict}: {count}" for verdict, count in verdicts.items())
        lines.append(f"| {name} | {spread(lost)} | {spread(recall)} | {spread(right)} | {judged} |")
    return "\n".join(lines)


def spread(figures: list[float]) -> str:
    """Smallest, mean and largest."""
    if not figures:
        return ""
    return f"{min(figures):.1f}, {mean(figures):.1f}, {max(figures):.1f}"


def trim_table(entries: dict[str, Any]) -> str:
    """A row per seed: what the cut and the random one lost."""
    lines = ["| seed | shape | perplexity, % lost | recall, points lost | random cut | verdict |"]
    lines.append("| ---: | --- | ---: | ---: | ---: | --- |")
    for seed, entry in entries.items():
        cut, control = (entry["trim"]["models"][name] for name in ("OUT", "rand"))
        cells = [interval(cut["lost"][task]) for task in ("text", "mqar")]
        cells.append(" and ".join(f"{control['lost'][task][0]:.1f}" for task in ("text", "mqar")))
        row = [seed, entry["trim"]["shape"], *cells, cut["verdict"]]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def interval(figures: list[float]) -> str:
    """An estimate and its interval."""
    estimate, low, high = figures
    return f"{estimate:.1f} ({low:.1f} to {high:.1f})"


if __name__ == "__main__":
    main()
