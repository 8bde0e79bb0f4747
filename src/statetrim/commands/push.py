"""statetrim push"""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ..storage.hub.options import PushOptions
from . import terminal
from .arguments import Json
from .command import command

Model = Annotated[Path, typer.Argument(help="Directory of the cut model.")]


@command(PushOptions)
def push(model: Model, options: PushOptions, as_json: Json = False) -> None:
    from ..storage.hub.upload import push as run

    pushed = run.run(model, options)
    if as_json:
        terminal.print_json(asdict(pushed))
        return
    visibility = "only you and those you let in see it" if pushed.private else "everyone sees it"
    terminal.print_text(f"{len(pushed.files)} files are at {pushed.url}; {visibility}")
    if pushed.quantized:
        terminal.print_text(f"quantised weights: {pushed.quantized}")
    if pushed.left_out:
        names = ", ".join(pushed.left_out)
        terminal.note(f"left out, because they name paths of this machine or are large: {names}")
