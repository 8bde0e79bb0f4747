"""What a person sees at the end of the demo: one table, and what to do next."""

import shlex
from collections.abc import Iterator
from pathlib import Path

from ..judging.verdict import Outcome
from ..pipelines.demo.story import (
    HALF,
    MEASURED_FROM,
    ORIGINAL,
    QUARTER,
    RANDOM,
    RECOVERY,
    SAMPLES,
    Result,
)
from . import terminal

BAR_WIDTH = 8
REMARKS = {ORIGINAL: "the original", RANDOM: "at random"}


def show_result(result: Result, out: Path, seconds: float) -> None:
    """Print the table of all models, and the next commands."""
    terminal.print_text("")
    terminal.print_text(
        f"The model uses {result.used_share:.0%} of the rank of its states. What does a cut lose?"
    )
    _show_models(result)
    for model in result.models:
        if model.verdict is not None and model.verdict.outcome is not Outcome.SHIP:
            terminal.print_text(f"{model.name}: {model.verdict.outcome}: {model.verdict.reason}")
    terminal.print_text("")
    terminal.print_text(f"{seconds:.0f} seconds; the report is {result.report}. Next:")
    for line in _next_commands(out):
        terminal.print_command(f"  {line}")


def _show_models(result: Result) -> None:
    rows = []
    for model in result.models:
        filled = round(BAR_WIDTH * model.recall)
        bar = "█" * filled + "░" * (BAR_WIDTH - filled)
        rows.append(
            (
                model.name,
                model.shape,
                f"{model.state_share:.0%}",
                f"{model.perplexity:.2f}",
                f"{bar} {model.recall:4.0%}",
                REMARKS.get(model.name) or str(model.verdict and model.verdict.outcome),
            )
        )
    header = ("", "heads", "state", "perplexity", "recall", "verdict")
    terminal.print_table("", header, rows, left=(0, 5))


def _next_commands(out: Path) -> Iterator[str]:
    """Commands to try next; they can be copied as written."""
    yield f"cd {shlex.quote(str(out))}"
    yield f"statetrim recover {QUARTER} --teacher {ORIGINAL} {RECOVERY} -o RECOVERED"
    yield (
        f"statetrim evaluate RECOVERED --baseline {ORIGINAL} --tasks text,mqar --text text.jsonl "
        f"--skip {MEASURED_FROM} --limit {SAMPLES} -o recovered.json"
    )
    yield f"statetrim inspect {QUARTER}   # which engines serve it, and how"
    yield (
        f"statetrim verify {HALF} --baseline {ORIGINAL} --engine transformers --text text.jsonl "
        "-o verification.json"
    )
    yield f"statetrim trim {ORIGINAL} --to 0.5 --text text.jsonl --tokens 32k -o OUT"
    yield "statetrim trim YOUR-MODEL --to 0.5 --text YOUR-TEXT -o YOUR-SMALLER-MODEL"
