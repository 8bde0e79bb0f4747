"""statetrim prune"""

from pathlib import Path
from typing import Annotated

import typer

from .. import arguments, checks
from ..app import app
from ..arguments import FamilyFile, Json, Model


@app.command()
def prune(
    model: Model,
    plan: Annotated[
        Path,
        typer.Argument(help="A plan that select made for this model.", callback=checks.must_exist),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="Output directory.")],
    uneven: Annotated[
        bool,
        typer.Option(
            "--uneven",
            help="Allow layers of different widths, which stock libraries cannot load.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, write nothing.")
    ] = False,
    family: FamilyFile = None,
    as_json: Json = False,
) -> None:
    """Write the smaller checkpoint that a plan describes, shard by shard."""
    from ...console.progress import show_progress
    from ...console.steps.prune import show_surgery
    from ...surgery.prune import prepare
    from ...surgery.prune import prune as run

    opened = arguments.open_model(model, family)
    surgery = prepare(opened, plan, uneven=uneven)
    if not dry_run:
        with show_progress("pruning") as progress:
            run(opened, plan, output, uneven=uneven, progress=progress)
    show_surgery(surgery, str(output), done=not dry_run, as_json=as_json)
