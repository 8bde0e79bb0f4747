"""statetrim refit"""

from pathlib import Path
from typing import Annotated

import typer

from .. import arguments, checks
from ..app import app
from ..arguments import FamilyFile, Json, Share


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
    from ...console.progress import show_progress
    from ...console.steps.refit import show_refit
    from ...surgery.refit import refit as run

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
