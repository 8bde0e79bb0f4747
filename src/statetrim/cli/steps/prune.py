"""statetrim prune"""

from pathlib import Path
from typing import Annotated

import typer

from .. import arguments
from ..app import app
from ..arguments import FamilyFile, Json, Model


@app.command()
def prune(
    model: Model,
    plan: Annotated[Path, typer.Argument(help="A plan made by select for this very model.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Directory of the result.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, write nothing.")
    ] = False,
    family: FamilyFile = None,
    as_json: Json = False,
) -> None:
    """Cut a checkpoint by a plan, shard by shard."""
    from ...artifacts.plan import Plan
    from ...console import terminal as console
    from ...surgery.prune import prepare
    from ...surgery.prune import prune as run

    opened, chosen = arguments.open_model(model, family), Plan.load(plan)
    surgery = prepare(opened, chosen)
    if not dry_run:
        with console.bytes_progress("pruning", surgery.bytes_after) as progress:
            run(opened, chosen, output, progress=progress)
    if as_json:
        console.show_json(
            {
                "output": str(output),
                "dry_run": dry_run,
                "tensors_cut": len(surgery.cuts),
                "head_k_dim": [opened.geometry.head_k_dim, surgery.geometry.head_k_dim],
                "head_v_dim": [opened.geometry.head_v_dim, surgery.geometry.head_v_dim],
                "state_bytes": [opened.geometry.state_numel * 4, surgery.geometry.state_numel * 4],
                "weight_bytes": [surgery.bytes_before, surgery.bytes_after],
                "parameters": [opened.parameters, surgery.parameters_after],
            }
        )
    else:
        console.show_surgery(surgery, str(output), done=not dry_run)
