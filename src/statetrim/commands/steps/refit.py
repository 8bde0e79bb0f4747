"""statetrim refit"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from ...surgery.options import RefitOptions
from .. import arguments, terminal
from ..arguments import FamilyFile, Json
from ..command import command

if TYPE_CHECKING:
    from ...storage.checkpoint import Checkpoint

Model = Annotated[str, typer.Argument(help="A pruned checkpoint.")]


@command(RefitOptions)
def refit(
    model: Model, options: RefitOptions, family: FamilyFile = None, as_json: Json = False
) -> None:
    from ...surgery.refit import refit as run
    from ..progress import show_progress

    opened = arguments.open_model(model, family)
    with show_progress("refitting") as progress:
        fitted = run.run(opened, replace(options, progress=progress))
    show_refit(fitted, str(options.out), as_json=as_json)


def show_refit(model: Checkpoint, output: str, *, as_json: bool) -> None:
    """Print the relative residual sum of squares of every layer's output before and after, from the
    refit.json of the checkpoint."""
    from ...artifacts.steps import RefitRecord
    from ...storage.output import ARTIFACTS

    layers = RefitRecord.load(model.path / ARTIFACTS / "refit.json").layers
    if as_json:
        terminal.print_json({"output": output, "layers": layers})
        return
    rows = []
    for layer, error in layers.items():
        before, after = error["before"], error["after"]
        rows.append((layer, f"{before:.2%}", f"{after:.2%}", f"{after / before - 1:+.0%}"))
    title = "Refitted: relative error of each layer's output"
    terminal.print_table(title, ("layer", "before", "after", "change"), rows, left=())
    terminal.print_text(f"sums of squares, on the text of the fit; written to {output}")
