"""statetrim push"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import terminal
from .app import app
from .arguments import Json

if TYPE_CHECKING:
    from ..storage.hub.upload import Pushed


@app.command()
def push(
    model: Annotated[Path, typer.Argument(help="Directory of the cut model.")],
    repo: Annotated[str, typer.Argument(help="Repository on the hub, OWNER/NAME.")],
    public: Annotated[
        bool, typer.Option("--public", help="Make the repository public; private by default.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Upload a cut model to the Hugging Face hub, with its card."""
    from ..storage.hub.upload import push as run

    show_pushed(run(model, repo, private=not public), as_json=as_json)


def show_pushed(pushed: Pushed, *, as_json: bool) -> None:
    """Print the URL, who can see it, and which files were left out."""
    if as_json:
        terminal.print_json(asdict(pushed))
        return
    visibility = "only you and those you let in see it" if pushed.private else "everyone sees it"
    terminal.print_text(f"{len(pushed.files)} files are at {pushed.url}; {visibility}")
    if pushed.left_out:
        names = ", ".join(pushed.left_out)
        terminal.note(f"left out, because they name paths of this machine or are large: {names}")
