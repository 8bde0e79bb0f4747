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
    arguments.refuse_existing(output)
    from ..console import demo as console
    from ..console.progress import shown
    from ..pipelines import demo as walk

    logging.getLogger("statetrim").setLevel(logging.ERROR)

    def command(arguments: list[str], quiet: bool) -> None:
        try:
            with console.muted(quiet):
                app(arguments, standalone_mode=False)
        except Interrupted:  # the demo itself says what it keeps
            raise KeyboardInterrupt from None

    walk.run(output, command, console.show_line, shown("training"))
