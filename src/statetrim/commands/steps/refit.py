"""statetrim refit"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .. import arguments, checks, terminal
from ..app import app
from ..arguments import FamilyFile, Json, Share

if TYPE_CHECKING:
    from ...storage.checkpoint import Checkpoint


@app.command()
def refit(
    model: Annotated[str, typer.Argument(help="A pruned checkpoint.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Output directory.")],
    statistics: Annotated[
        Path | None,
        typer.Option(
            help="Statistics from calibrate --original for this checkpoint.",
            callback=checks.must_exist,
        ),
    ] = None,
    damping: Annotated[
        float, typer.Option(help="Ridge penalty, relative to the mean square of the channels.")
    ] = 1e-8,
    share: Share = None,
    family: FamilyFile = None,
    as_json: Json = False,
) -> None:
    """Fit the output projections of a pruned checkpoint to the original's layer outputs."""
    shares = arguments.parse_shares(share or [])
    from ...surgery.refit import refit as run
    from ..progress import show_progress

    opened = arguments.open_model(model, family)
    with show_progress("refitting") as progress:
        fitted = run(
            opened,
            statistics,
            out=output,
            shares=shares,
            damping=damping,
            progress=progress,
        )
    show_refit(fitted, str(output), as_json=as_json)


def show_refit(model: Checkpoint, output: str, *, as_json: bool) -> None:
    """Print the relative residual sum of squares of every layer's output before and after, from the
    refit.json of the checkpoint."""
    from rich.table import Table

    from ...storage.json_file import read_json
    from ...storage.output import ARTIFACTS, MAX_RECORD_BYTES

    layers = read_json(model.path / ARTIFACTS / "refit.json", MAX_RECORD_BYTES)["layers"]
    if as_json:
        terminal.print_json({"output": output, "layers": layers})
        return
    table = Table(title="Refitted: relative error of each layer's output", title_justify="left")
    for name in ("layer", "before", "after", "change"):
        table.add_column(name, justify="right")
    for layer, error in layers.items():
        before, after = error["before"], error["after"]
        table.add_row(layer, f"{before:.2%}", f"{after:.2%}", f"{after / before - 1:+.0%}")
    terminal.print_table(table)
    terminal.print_text(f"sums of squares, on the text of the fit; written to {output}")
