"""statetrim push"""

from pathlib import Path
from typing import Annotated

import typer

from .app import app
from .arguments import Json


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
    from ..console.push import show_pushed
    from ..storage.hub.upload import push as run

    show_pushed(run(model, repo, private=not public), as_json=as_json)
