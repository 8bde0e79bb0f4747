"""statetrim recover"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...maths.units import parse_token_count
from ...progress import is_rank_zero
from ...recovery.options import RecoverRunOptions
from .. import arguments, terminal
from ..arguments import FamilyFile, Json
from ..command import command

if TYPE_CHECKING:
    from ...storage.checkpoint import Checkpoint


Model = Annotated[str, typer.Argument(help="The pruned checkpoint.")]


@command(RecoverRunOptions)
def recover(
    model: Model, options: RecoverRunOptions, family: FamilyFile = None, as_json: Json = False
) -> None:
    from ...recovery.recover import recover as run
    from ..progress import run_with_progress

    opened = arguments.open_model(model, family)
    teacher = options.teacher
    if teacher is not None:
        teacher = arguments.open_model(str(teacher), family)
    recovered = run_with_progress(run, opened, options, teacher=teacher)
    if is_rank_zero():
        show_recovery(recovered, str(options.out), as_json=as_json)
        if not as_json:
            terminal.print_text(f"measure it:   {_evaluate_command(options)}")


def _evaluate_command(options: RecoverRunOptions) -> str:
    """The command that compares the result with its teacher, on text that it has not seen."""
    from ...serving.deployment import evaluate_command

    seen = parse_token_count(options.skip) + parse_token_count(options.tokens)
    teacher, text = str(options.teacher or "ORIGINAL"), str(options.text)
    return evaluate_command(str(options.out), teacher, text, seen, f"{options.out}.json")


def show_recovery(recovered: Checkpoint, output: str, *, as_json: bool) -> None:
    """Print mean losses of the first and the last tenth of the steps."""
    from statistics import mean

    from ...artifacts.steps import RecoverRecord

    record = RecoverRecord.of_model(recovered)
    curve: Any = record.curve
    if as_json:
        terminal.print_json({"output": output, "coverage": record.coverage, "curve": curve})
        return
    steps = max(1, len(curve) // 10)
    rows = []
    for name in ("loss", "ce", "kl"):
        if curve[0].get(name) is not None:
            ends = (mean(step[name] for step in part) for part in (curve[:steps], curve[-steps:]))
            rows.append((name, *(f"{end:.4f}" for end in ends)))
    header = ("training loss", f"first {steps} steps", f"last {steps} steps")
    terminal.print_table("Recovery", header, rows)
    trained = len(record.trained_tensors)
    terminal.print_text(
        f"{curve[-1]['tokens']:,.0f} tokens in {len(curve)} steps; {trained} tensors changed, the "
        f"others are as they were; written to {output}",
    )
    terminal.print_text(
        "the training loss is of other batches at each end, so small changes say little"
    )
