"""statetrim demo"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import arguments, terminal
from .app import app
from .group import Interrupted

if TYPE_CHECKING:
    from ..pipelines.demo.story import Result


def demo(
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Output directory for the models and the report.")
    ] = Path("statetrim-demo"),
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Show every command and its output.")
    ] = False,
) -> None:
    arguments.check_output_free(output)
    from .demo_result import show_result

    began = time.monotonic()
    show_beginning()
    result = run_story(output, verbose=verbose)
    show_result(result, output, time.monotonic() - began)


def show_beginning() -> None:
    """Say what the demo starts from."""
    terminal.print_text(
        "A Qwen3.5 model of 589 thousand parameters loses parts of its recurrent state.",
        style="bold",
    )


def run_story(
    output: Path,
    *,
    verbose: bool = False,
    seed: int = 0,
    on_step: Callable[[str], None] = terminal.print_text,
) -> Result:
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

    return run(output, run_command, on_step, seed)


@contextmanager
def muted(quiet: bool) -> Iterator[None]:
    """Within, nothing but progress and errors is shown if `quiet`."""
    terminal.out().quiet = quiet
    try:
        yield
    finally:
        terminal.out().quiet = False
