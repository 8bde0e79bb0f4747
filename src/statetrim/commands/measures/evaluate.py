"""statetrim evaluate"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .. import arguments, checks, terminal
from ..app import app, print_error
from ..arguments import Device, DeviceMap, Dtype, Json, MaxMemory

if TYPE_CHECKING:
    from ...artifacts.scores import Scores
    from ...judging.losses import Loss
    from ...judging.verdict import Verdict


StateDtype = Annotated[
    str,
    typer.Option(
        help="Store the states of all models except the baseline in bfloat16, float16, "
        "float8_e4m3fn or int8, rounded after every decoded token and every piece of "
        "a prompt."
    ),
]
StatePiece = Annotated[
    int, typer.Option(help="Tokens per piece of a prompt; 1 rounds after every token.")
]
StateStochastic = Annotated[
    bool, typer.Option("--state-stochastic", help="Use stochastic rounding.")
]

Models = Annotated[list[str], typer.Argument(help="Checkpoints to compare with the baseline.")]
Baseline = Annotated[str, typer.Option(help="The original checkpoint.")]
Output = Annotated[Path, typer.Option("-o", "--output", help="File to write the scores to.")]
Tasks = Annotated[
    str,
    typer.Option(
        help="Tasks or suites (likelihood, recall, offline), separated by commas.",
        callback=checks.tasks,
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(help="Directory with the tasks' data files; by default they come from the hub."),
]
Text = Annotated[
    str | None,
    typer.Option(help="Your own text, for the task 'text'.", callback=checks.text_source),
]
Skip = Annotated[
    str,
    typer.Option(help="Tokens to skip at the start of that text.", callback=checks.token_counts),
]
Limit = Annotated[
    int | None, typer.Option(help="Use only this many samples per task, for a quick look.")
]
BatchSize = Annotated[
    int, typer.Option(help="Sequences per forward pass.", callback=checks.at_least_one)
]
FailIf = Annotated[
    list[str] | None,
    typer.Option(
        help="Exit with code 1 if this holds: 'recall drop > 2%' (or: > 2 points), 'not ship'.",
        callback=checks.rules,
    ),
]
Engine = Annotated[
    str, typer.Option(help="hf (transformers), or vllm if it is installed in this environment.")
]
EngineOption = Annotated[
    list[str] | None,
    typer.Option(help="NAME=VALUE for vLLM, such as tensor_parallel_size=2, dtype=bfloat16."),
]
Layerwise = Annotated[
    bool,
    typer.Option("--layerwise", help="Stream weights from disk, for models larger than memory."),
]


@app.command()
def evaluate(
    models: Models,
    baseline: Baseline,
    output: Output,
    tasks: Tasks = "offline",
    data: Data = None,
    text: Text = None,
    skip: Skip = "0",
    limit: Limit = None,
    batch_size: BatchSize = 8,
    fail_if: FailIf = None,
    engine: Engine = "hf",
    engine_option: EngineOption = None,
    state_dtype: StateDtype = "float32",
    state_piece: StatePiece = 64,
    state_stochastic: StateStochastic = False,
    layerwise: Layerwise = False,
    device: Device = None,
    device_map: DeviceMap = None,
    max_memory: MaxMemory = None,
    dtype: Dtype = None,
    as_json: Json = False,
) -> None:
    """Score models and their original on the same samples, and report what was lost."""
    from ...evaluation.evaluate import evaluate as run
    from ...judging.gate import find_violation
    from ...progress import is_rank_zero
    from ...runtime.states.stored import StateStorage
    from ...serving.deployment import ship_verdicts
    from ..progress import show_progress

    with show_progress() as progress:
        scores = run(
            models,
            baseline=baseline,
            tasks=[name.strip() for name in tasks.split(",")],
            data=data,
            text=text,
            skip=skip,
            limit=limit,
            batch_size=batch_size,
            engine=engine,  # type: ignore[arg-type]
            engine_options=arguments.parse_named_values(
                engine_option or [], "--engine-option", "dtype=bfloat16"
            ),
            layerwise=layerwise,
            storage=StateStorage(state_dtype, state_piece, state_stochastic),
            device=device,
            device_map=device_map,
            max_memory=max_memory,
            dtype=dtype,
            out=output,
            progress=progress,
        )
    if not is_rank_zero():
        return
    verdicts = ship_verdicts(scores, models)
    show_scores(scores, verdicts, str(output), as_json=as_json)
    for rule in fail_if or []:
        violation = find_violation(rule, scores, verdicts)
        if violation:
            print_error(violation)
            sys.exit(1)


def show_scores(
    scores: Scores, ship_verdicts: Sequence[Verdict], output: str, *, as_json: bool
) -> None:
    """Print every score, what each cut lost, and the verdict on each cut."""
    from ...judging.losses import (
        averaged_settings_text,
        mean_recall_text,
        scores_table,
        task_losses,
    )

    losses: list[Loss] = []
    for model in scores.models[1:]:
        losses += task_losses(scores, model)
    if as_json:
        extra = {
            "verdicts": [_loss_json(loss) for loss in losses],
            "ship": [verdict.as_json() for verdict in ship_verdicts],
            "output": output,
        }
        terminal.print_json(scores.as_json(samples=False) | extra)
        return
    terminal.print_artifact_table(scores_table(scores), left_columns=2)
    for loss in losses:
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


def _loss_json(row: Loss) -> dict[str, Any]:
    return {
        "model": row.model,
        "task": row.task,
        "metric": row.metric,
        "loss": [row.loss.estimate, row.loss.low, row.loss.high],
        "unit": row.unit.suffix.strip(),
        "mcnemar_p": row.p,
        "verdict": row.sentence,
    }


def show_verdict(verdict: Verdict, name: str = "") -> None:
    """Print the outcome with its reason, then facts, to standard output, and warnings to know
    before serving to standard error; `name` replaces the model's."""
    terminal.print_text(
        f"{name or verdict.model}: {verdict.outcome.upper()}: {verdict.reason}", style="bold"
    )
    for fact in verdict.facts:
        terminal.print_text(f"  {fact}")
    for warning in verdict.warnings:
        terminal.warn(f"warning: {warning}")
