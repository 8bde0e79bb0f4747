"""statetrim demo"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from . import arguments, terminal
from .app import app
from .group import Interrupted


def demo(
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Output directory for the models and the report.")
    ] = Path("statetrim-demo"),
) -> None:
    arguments.check_output_free(output)
    from ..pipelines import demo as demo_pipeline
    from .progress import show_progress

    logging.getLogger("statetrim").setLevel(logging.ERROR)

    def run_command(words: list[str], quiet: bool) -> None:
        try:
            with muted(quiet):
                app(words, standalone_mode=False)
        except Interrupted:  # the demo's own message says what is kept
            raise KeyboardInterrupt from None

    demo_pipeline.run(output, run_command, show_line, show_progress("training"))


def show_line(text: str) -> None:
    """Print a command, which begins with $, or a remark."""
    terminal.print_text(text, style="bold" if text.startswith("$") else "dim")


@contextmanager
def muted(quiet: bool) -> Iterator[None]:
    """Within, nothing is printed to standard output if `quiet`."""
    terminal.out().quiet = quiet
    try:
        yield
    finally:
        terminal.out().quiet = False
