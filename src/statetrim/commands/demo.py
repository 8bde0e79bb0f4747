"""statetrim demo"""

import logging
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from . import arguments, terminal
from .app import app
from .group import Interrupted

BEGINNING = "A Qwen3.5 model of 589 thousand parameters loses parts of its recurrent state."
BAR_WIDTH = 8


def demo(
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Output directory for the models and the report.")
    ] = Path("statetrim-demo"),
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Show every command and its output.")
    ] = False,
) -> None:
    arguments.check_output_free(output)
    began = time.monotonic()
    terminal.print_text(BEGINNING, style="bold")
    run_story(output, verbose=verbose)
    show_result(output, time.monotonic() - began)


def run_story(
    output: Path,
    *,
    verbose: bool = False,
    seed: int = 0,
    on_step: Callable[[str], None] = terminal.print_text,
) -> None:
    """Run the demo's commands. `on_step` gets a line per step; `verbose` shows all they print."""
    import torch

    from ..pipelines.demo.story import run

    logging.getLogger("statetrim").setLevel(logging.ERROR)
    torch.set_num_threads(min(2, torch.get_num_threads()))  # more are slower on matrices this small

    def run_command(words: list[str]) -> None:
        if verbose:
            terminal.print_text(f"$ statetrim {' '.join(words)}", style="bold")
        try:
            with muted(not verbose):
                app(words, standalone_mode=False)
        except Interrupted:  # the demo's own message says what is kept
            raise KeyboardInterrupt from None

    run(output, run_command, on_step, seed)


@contextmanager
def muted(quiet: bool) -> Iterator[None]:
    """Within, nothing but progress and errors is shown if `quiet`."""
    terminal.out().quiet = quiet
    try:
        yield
    finally:
        terminal.out().quiet = False


def show_result(out: Path, seconds: float) -> None:
    """Print a table of all models of the demo, why bad cuts are bad, and the next commands."""
    from ..artifacts.analysis import Analysis
    from ..artifacts.scores import Scores
    from ..judging.verdict import Outcome
    from ..pipelines.demo.story import ORIGINAL, RANDOM, scenes
    from ..serving.deployment import ship_verdicts
    from ..storage.checkpoint import open_checkpoint

    used = float(Analysis.load(out / "analysis.json").mean_utilization.nanmean())
    scores, rows = Scores.load(out / "scores.json"), []
    models = {name: open_checkpoint(out / name) for name in scores.models}
    verdicts = ship_verdicts(scores, list(models.values())[1:])
    remarks = {ORIGINAL: "the original", RANDOM: "at random"}
    remarks |= {verdict.model: str(verdict.outcome) for verdict in verdicts}
    for name, model in models.items():
        share = model.geometry.state_numel / models[ORIGINAL].geometry.state_numel
        perplexity = scores.find(name, "text", "perplexity").value
        recall = scores.find(name, "mqar", "accuracy").value
        bar = ("█" * round(BAR_WIDTH * recall)).ljust(BAR_WIDTH, "░")
        shape = model.geometry.shape.replace(" x ", "x")
        figures = (f"{share:.0%}", f"{perplexity:.2f}", f"{bar} {recall:4.0%}")
        rows.append((name, shape, *figures, remarks[name]))
    terminal.print_text("")
    terminal.print_text(
        f"The model uses {used:.0%} of the rank of its states. What does a cut lose?"
    )
    header = ("", "heads", "state", "perplexity", "recall", "verdict")
    terminal.print_table("", header, rows, left=(0, 5))
    for verdict in verdicts:
        if verdict.outcome is not Outcome.SHIP:
            terminal.print_text(f"{verdict.model}: {verdict.outcome}: {verdict.reason}")
    report = out / "report" / "report.html"
    terminal.print_text("")
    terminal.print_text(f"{seconds:.0f} seconds; the report is {report}. Next:")
    *_, proposed = scenes().values()
    for line in (f"cd {shlex.quote(str(out))}", *(f"statetrim {words}" for words in proposed)):
        terminal.print_command(f"  {line}")
