"""statetrim demo"""

import logging
from pathlib import Path
from typing import Annotated

import typer

from . import arguments
from .app import app
from .program import Interrupted


@app.command()
def demo(
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Output directory for the models and the report.")
    ] = Path("statetrim-demo"),
) -> None:
    """Train a tiny model on this machine, cut it with three methods, and show what each one
    loses."""
    arguments.check_output_free(output)
    from ..console import demo as console
    from ..console.progress import show_progress
    from ..pipelines import demo as demo_pipeline

    logging.getLogger("statetrim").setLevel(logging.ERROR)

    def run_command(words: list[str], quiet: bool) -> None:
        try:
            with console.muted(quiet):
                app(words, standalone_mode=False)
        except Interrupted:  # the demo's own message says what is kept
            raise KeyboardInterrupt from None

    demo_pipeline.run(output, run_command, console.show_line, show_progress("training"))
