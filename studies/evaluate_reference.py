"""One command from a model to a table and a plot: calibrate, select, prune, evaluate, report.

    python studies/evaluate_reference.py MODEL DATA OUT [--also CHECKPOINT ...]

Prunes MODEL by each method at each width, evaluates the original and every cut on all tasks, and
writes OUT/table.md and OUT/recall.png. Checkpoints given with --also (after recovery, say) get
columns of their own. Run it again after an interruption, or with more methods: finished steps are
kept.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot

from statetrim import Scores
from statetrim.judging.losses import main_metrics, metric_loss, recall_change
from statetrim.maths.paired import difference_interval
from statetrim.tasks import group_of
from statetrim.tasks.unit import SHARE

# Each group has its own limit: a wikitext document takes as long as a hundred questions.
GROUPS = {
    "choices": ["lambada_openai", "arc_easy", "arc_challenge", "hellaswag", "winogrande", "piqa"],
    "logits": ["mqar", "agreement"],
    "long": ["wikitext", "squad_completion", "fda", "swde"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--also", type=Path, nargs="*", default=[])
    parser.add_argument("--methods", nargs="*", default=["rand", "drrqr", "grad"])
    parser.add_argument("--keep", nargs="*", default=["0.5", "0.25"])
    parser.add_argument("--tokens", default="24k", help="for calibration")
    for group in GROUPS:
        parser.add_argument(f"--{group}", type=int, metavar="N", help="samples per task; all")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    cuts = prune(arguments)
    score_groups = [evaluate(arguments, group, [*cuts, *arguments.also]) for group in GROUPS]
    (arguments.out / "table.md").write_text("\n".join(table(score_groups)) + "\n")
    plot(
        next(scores for scores in score_groups if "mqar" in scores.tasks),
        arguments.out / "recall.png",
    )
    print(f"wrote {arguments.out / 'table.md'} and {arguments.out / 'recall.png'}")


def statetrim(*arguments: object) -> None:
    command = [sys.executable, "-m", "statetrim", *map(str, arguments)]
    subprocess.run(command, check=True)


def prune(arguments: argparse.Namespace) -> list[Path]:
    """A checkpoint for each method and width."""
    statistics = arguments.out / "statistics.safetensors"
    text = arguments.data / "pretrain_mix" / "valid.jsonl"
    if not statistics.exists():
        method_options = ("--for", ",".join(m for m in arguments.methods if m != "rand") or "drrqr")
        source = ("--text", text, "--tokens", arguments.tokens)
        statetrim(
            "calibrate", arguments.model, *method_options, *source, "--recall", 0, "-o", statistics
        )
    cuts = []
    for method in arguments.methods:
        for keep in arguments.keep:
            plan, cut = (arguments.out / f"{method}-{keep}{end}" for end in (".json", ""))
            if not plan.exists():
                options = (
                    "--method",
                    method,
                    "--to",
                    f"{float(keep):.1%}x100%",
                    "--statistics",
                    statistics,
                )
                statetrim("select", arguments.model, *options, "-o", plan)
            statetrim("prune", arguments.model, plan, "-o", cut)
            cuts.append(cut)
    return cuts


def evaluate(arguments: argparse.Namespace, group: str, models: list[Path]) -> Scores:
    out = arguments.out / f"{group}.json"
    if out.exists() and len(Scores.load(out).models) != 1 + len(models):
        out.unlink()  # it has scores of other models
    if not out.exists():
        limit = getattr(arguments, group)
        options = ["--tasks", ",".join(GROUPS[group]), "--data", arguments.data, "-o", out]
        if "agreement" in GROUPS[group]:
            options += ["--text", arguments.data / "wikitext-2-raw" / "wiki.test.raw"]
        options += ["--limit", limit] if limit else []
        statetrim("evaluate", *models, "--baseline", arguments.model, *options)
    return Scores.load(out)


def table(score_groups: list[Scores]) -> list[str]:
    """Markdown: the original's figures, and for each cut its figure and the paired interval."""
    names = score_groups[0].models
    lines = [
        "| task | metric | samples | " + " | ".join(names) + " |",
        "|---" * (3 + len(names)) + "|",
    ]
    for scores in score_groups:
        for task in scores.tasks:
            metrics = scores.metrics(task) if task == "mqar" else main_metrics(scores, task)
            for metric in metrics + (["top1"] if task == "agreement" else []):
                count = len(scores.find(names[0], task, metric).samples)
                cells = [cell(scores, name, task, metric) for name in names]
                lines.append(f"| {task} | {metric} | {count} | " + " | ".join(cells) + " |")
    for scores in score_groups:
        changes = [recall_change(scores, name) for name in names[1:]]
        if all(change is not None for change in changes):
            cells = [f"{c.estimate:+.1f} [{c.low:+.1f}, {c.high:+.1f}]" for c in changes if c]
            tasks = [task for task in scores.tasks if group_of(task, SHARE) == "recall"]
            lines.append(f"| mean of {', '.join(tasks)} | points | | | " + " | ".join(cells) + " |")
    return lines


def cell(scores: Scores, model: str, task: str, metric: str) -> str:
    score = scores.find(model, task, metric)
    digits = {"perplexity": f"{score.value:,.0f}", "nats": f"{score.value:.3f}"}
    text = digits.get(score.unit, f"{100 * score.value:.1f}")
    if model == scores.baseline:
        return text
    loss = metric_loss(scores, model, task, metric).loss
    change = -loss if score.higher_is_better else loss
    unit, places = (
        ("%", 0) if score.unit == "perplexity" else ("", 3 if score.unit == "nats" else 1)
    )
    return f"{text} [{change.low:+.{places}f}, {change.high:+.{places}f}{unit}]"


def plot(scores: Scores, path: Path) -> None:
    """Recall over the number of stored pairs, with intervals of the difference to the original."""
    metrics = [m for m in scores.metrics("mqar") if m.startswith("pairs_") and "_in_" not in m]
    pairs = [int(metric.removeprefix("pairs_")) for metric in metrics]
    figure, axes = pyplot.subplots(figsize=(8.5, 4.5), layout="constrained")
    styles: dict[str, str] = {}
    for model in scores.models:
        method, _, keep = model.rpartition("-") if model != scores.baseline else (model, "", "")
        values = [100 * scores.find(model, "mqar", metric).value for metric in metrics]
        kind = {"": "-", "0.5": "--", "0.25": ":"}.get(keep, "-.")
        color = styles.setdefault(
            method, "black" if model == scores.baseline else f"C{len(styles)}"
        )
        label = f"{method}, keep {float(keep):.0%}" if keep else f"{model} (original)"
        if model == scores.baseline:
            axes.plot(pairs, values, kind, color=color, marker="o", markersize=4, label=label)
            continue
        bounds = [difference_interval([scores.pairs(model, "mqar", m)]) for m in metrics]
        low = [100 * max(0.0, b.estimate - b.low) for b in bounds]
        high = [100 * max(0.0, b.high - b.estimate) for b in bounds]
        style: dict[str, Any] = {
            "linestyle": kind,
            "color": color,
            "marker": "o",
            "markersize": 4,
            "capsize": 2,
        }
        axes.errorbar(pairs, values, yerr=[low, high], label=label, **style)
    axes.set_xscale("log", base=2)
    axes.set_xticks(pairs, [str(count) for count in pairs])
    axes.minorticks_off()
    axes.set_ylim(0, 103)
    axes.set_xlabel("pairs stored in the state (MQAR)")
    axes.set_ylabel("values recalled, %")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.savefig(path, dpi=140)


if __name__ == "__main__":
    main()
