"""What a person sees of `evaluate`."""

from collections.abc import Sequence

from ...artifacts.losses import averaged_settings_text, mean_recall_text, task_losses
from ...artifacts.scores import Scores
from ...artifacts.verdict import Verdict
from .. import terminal


def show_scores(
    scores: Scores, ship_verdicts: Sequence[Verdict], output: str, *, as_json: bool
) -> None:
    """Every score, what was lost, and the verdict on each cut."""
    model_losses = [loss for model in scores.models[1:] for loss in task_losses(scores, model)]
    if as_json:
        loss_records = [
            {
                "model": v.model,
                "task": v.task,
                "metric": v.metric,
                "loss": [v.loss.estimate, v.loss.low, v.loss.high],
                "unit": {"perplexity": "%", "share": "points", "nats": "nats"}[v.unit],
                "mcnemar_p": v.p,
                "verdict": v.sentence,
            }
            for v in model_losses
        ]
        verdict_records = [verdict.as_json() for verdict in ship_verdicts]
        extra = {"verdicts": loss_records, "ship": verdict_records, "output": output}
        terminal.print_json(scores.as_json(samples=False) | extra)
        return
    terminal.print_artifact_table(scores.table(), left_columns=2)
    for loss in model_losses:
        p = "" if loss.p is None else f" (McNemar p = {loss.p:.3g})"
        terminal.print_text(f"{loss.task}, {loss.metric}, {loss.model}: {loss.sentence}{p}")
    for model in scores.models[1:]:
        if sentence := mean_recall_text(scores, model):
            terminal.print_text(f"mean recall, {model}: {sentence}")
    for task in scores.tasks:
        for metric in scores.metrics(task):
            if sentence := averaged_settings_text(scores, task, metric):
                terminal.print_text(f"{task}, {metric}: {sentence}")
    terminal.print_text(f"intervals of 95%, paired by sample; written to {output}")
    for verdict in ship_verdicts:
        show_verdict(verdict)


def show_verdict(verdict: Verdict, name: str = "") -> None:
    """The outcome, why, and what to know before serving."""
    terminal.print_text(
        f"{name or verdict.model}: {verdict.outcome.upper()}: {verdict.reason}", style="bold"
    )
    for fact in verdict.facts:
        terminal.print_text(f"  {fact}")
    for warning in verdict.warnings:
        terminal.warn(f"warning: {warning}")
