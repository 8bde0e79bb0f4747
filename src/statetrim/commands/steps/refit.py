"""statetrim refit"""

from typing import Annotated

import typer

from ...maths.formatting import relative_change_text
from ...surgery.options import RefitOptions
from .. import arguments, terminal
from ..arguments import FamilyFile, Json
from ..command import command

Model = Annotated[str, typer.Argument(help="A pruned checkpoint.")]


@command(RefitOptions)
def refit(
    model: Model, options: RefitOptions, family: FamilyFile = None, as_json: Json = False
) -> None:
    from ...artifacts.steps import RefitRecord
    from ...storage.output import ARTIFACTS
    from ...surgery.refit import refit as run
    from ..progress import run_with_progress

    opened = arguments.open_model(model, family)
    fitted = run_with_progress(run, opened, options, "refitting")
    layers = RefitRecord.load(fitted.path / ARTIFACTS / "refit.json").layers
    if as_json:
        terminal.print_json({"output": str(options.out), "layers": layers})
        return
    rows = []
    for layer, error in layers.items():
        before, after = error["before"], error["after"]
        change = relative_change_text(before, after)
        rows.append((layer, f"{before:.2%}", f"{after:.2%}", change))
    title = "Refitted: relative error of each layer's output"
    terminal.print_table(title, ("layer", "before", "after", "change"), rows, left=())
    terminal.print_text(f"sums of squares, on the text of the fit; written to {options.out}")
