"""What a person sees of `evaluate`."""

from collections.abc import Sequence

from ...artifacts.losses import averaged_settings_text, mean_recall_text, task_losses
from ...artifacts.scores import Scores
from ...artifacts.verdict import Verdict
from .. import terminal


def show_scores(scores: Scores, judged: Sequence[Verdict], where: str, *, as_json: bool) -> None:
    """Every score, what was lost, and the verdict on each cut."""
    found = [x for model in scores.models[1:] for x in task_losses(scores, model)]
    if as_json:
        told = [
            {
                "model": v.model,
                "task": v.task,
                "metric": v.metric,
                "loss": [v.loss.estimate, v.loss.low, v.loss.high],
                "unit": {"perplexity": "%", "share": "points", "nats": "nats"}[v.unit],
                "mcnemar_p": v.p,
                "verdict": v.sentence,
            }
            for v in found
        ]
        verdicts = [one.as_json() for one in judged]
        more = {"verdicts": told, "ship": verdicts, "output": where}
        terminal.show_json(scores.as_json(samples=False) | more)
        return
    terminal.show_table(scores.table(), left=2)
    for x in found:
        p = "" if x.p is None else f" (McNemar p = {x.p:.3g})"
        terminal.say(f"{x.task}, {x.metric}, {x.model}: {x.sentence}{p}")
    for model in scores.models[1:]:
        if said := mean_recall_text(scores, model):
            terminal.say(f"mean recall, {model}: {said}")
    for task in scores.tasks:
        for metric in scores.metrics(task):
            if said := averaged_settings_text(scores, task, metric):
                terminal.say(f"{task}, {metric}: {said}")
    terminal.say(f"intervals of 95%, paired by sample; written to {where}")
    for one in judged:
        show_verdict(one)


def show_verdict(judged: Verdict, name: str = "") -> None:
    """The outcome, why, and what to know before serving."""
    terminal.say(f"{name or judged.model}: {judged.outcome.upper()}: {judged.reason}", style="bold")
    for fact in judged.facts:
        terminal.say(f"  {fact}")
    for warning in judged.warnings:
        terminal.warn(f"warning: {warning}")
