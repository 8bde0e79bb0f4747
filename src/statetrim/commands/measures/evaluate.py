"""statetrim evaluate"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ...evaluation.options import EvaluateOptions
from .. import terminal
from ..app import print_error
from ..arguments import Json, Models
from ..command import command

if TYPE_CHECKING:
    from ...artifacts.scores import Scores
    from ...judging.verdict import Verdict
    from ...serving.deployment import NextStep

DEFAULT_TOKENS = "256k"  # of calibration, where the cut does not say

FailIf = Annotated[
    Literal["not ship"] | None,
    typer.Option(help="Exit with code 1 if the verdict on a cut is another than 'ship'."),
]


@command(EvaluateOptions)
def evaluate(
    models: Models, options: EvaluateOptions, fail_if: FailIf = None, as_json: Json = False
) -> None:
    from ...evaluation.evaluate import evaluate as run
    from ...judging.verdict import Outcome
    from ...progress import is_rank_zero
    from ...serving.deployment import ship_verdicts
    from ..progress import run_with_progress

    scores = run_with_progress(run, models, options)
    if not is_rank_zero():
        return
    verdicts = ship_verdicts(scores, models)
    show_scores(scores, verdicts, str(options.out), as_json=as_json)
    if len(models) == 1 and not as_json:
        show_next_steps(_next_steps(verdicts[0], models[0], options))
    for verdict in verdicts if fail_if else ():
        if verdict.outcome is not Outcome.SHIP:
            print_error(f"{verdict.model}: {verdict.outcome}: {verdict.reason}")
            sys.exit(1)


def _next_steps(verdict: Verdict, model: str, options: EvaluateOptions) -> list[NextStep]:
    """What to do next; none without a text, which the commands need."""
    from ...evaluation.samples import DEFAULT_SAMPLES
    from ...maths.units import parse_token_count
    from ...serving.deployment import RunFacts, next_steps
    from ...storage.models import as_checkpoint

    if options.text is None:
        return []
    baseline = as_checkpoint(options.baseline)
    facts = RunFacts(
        model=str(options.baseline),
        cut=str(model),
        text=str(options.text),
        tokens=str(DEFAULT_TOKENS),
        skip=parse_token_count(options.skip),
        samples=options.limit or DEFAULT_SAMPLES,
    )
    return next_steps(verdict, baseline, as_checkpoint(model), facts)


def show_scores(
    scores: Scores, ship_verdicts: Sequence[Verdict], output: str, *, as_json: bool
) -> None:
    """Print every score, what each cut lost, and the verdict on each cut."""
    from ...judging import losses as judging

    losses = [x for model in scores.models[1:] for x in judging.task_losses(scores, model)]
    if as_json:
        verdicts = [
            {
                "model": loss.model,
                "task": loss.task,
                "metric": loss.metric,
                "loss": [loss.loss.estimate, loss.loss.low, loss.loss.high],
                "unit": loss.unit.suffix.strip(),
                "mcnemar_p": loss.p,
                "verdict": loss.sentence,
            }
            for loss in losses
        ]
        ship = [asdict(verdict) for verdict in ship_verdicts]
        extra = {"verdicts": verdicts, "ship": ship, "output": output}
        terminal.print_json(scores.as_json(samples=False) | extra)
        return
    terminal.print_table(*judging.scores_table(scores), left=(0, 1))
    for loss in losses:
        p = "" if loss.p is None else f" (McNemar p = {loss.p:.3g})"
        terminal.print_text(f"{loss.task}, {loss.metric}, {loss.model}: {loss.sentence}{p}")
    for task in scores.tasks:
        for metric in scores.metrics(task):
            if sentence := judging.averaged_settings_text(scores, task, metric):
                terminal.print_text(f"{task}, {metric}: {sentence}")
    terminal.print_text(f"intervals of 95%, paired by sample; written to {output}")
    for verdict in ship_verdicts:
        show_verdict(verdict)


def show_verdict(verdict: Verdict, name: str = "", steps: Sequence[NextStep] = ()) -> None:
    """Print the outcome and facts, warnings to standard error, and what to do next."""
    terminal.print_text(
        f"{name or verdict.model}: {verdict.outcome.upper()}: {verdict.reason}", style="bold"
    )
    for fact in verdict.facts:
        terminal.print_text(f"  {fact}")
    for warning in verdict.warnings:
        terminal.warn(f"warning: {warning}")
    show_next_steps(steps)


def show_next_steps(steps: Sequence[NextStep]) -> None:
    """Print commands, each below why it is proposed."""
    if steps:
        terminal.print_text("next:")
    for step in steps:
        terminal.print_text(f"  {step.reason}")
        terminal.print_command(f"    {step.command}")
