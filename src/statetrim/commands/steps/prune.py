"""statetrim prune"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...maths.formatting import bytes_text, relative_change_text
from .. import arguments, checks, terminal
from ..app import app
from ..arguments import FamilyFile, Json, Model

if TYPE_CHECKING:
    from ...surgery.prune import Surgery


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
    from ...surgery.prune import prepare
    from ...surgery.prune import prune as run
    from ..progress import show_progress

    opened = arguments.open_model(model, family)
    surgery = prepare(opened, plan, uneven=uneven)
    if not dry_run:
        with show_progress("pruning") as progress:
            run(opened, plan, output, uneven=uneven, progress=progress)
    show_surgery(surgery, str(output), done=not dry_run, as_json=as_json)


def show_surgery(surgery: Surgery, output: str, *, done: bool, as_json: bool) -> None:
    """Print state, weights and parameters before and after; `done` is False for a dry run."""
    from rich.table import Table

    from ..state import state_size_json

    before, after = surgery.model.geometry, surgery.geometry
    if as_json:
        terminal.print_json(
            {
                "output": output,
                "dry_run": not done,
                "tensors_cut": len(surgery.edits),
                "head_k_dim": [before.head_k_dim, after.head_k_dim],
                "head_v_dim": [before.head_v_dim, after.head_v_dim],
                **state_size_json(before, after),
                "weight_bytes": [surgery.bytes_before, surgery.bytes_after],
                "parameters": [surgery.model.parameters, surgery.parameters_after],
            }
        )
        return
    title = "Pruned" if done else "Dry run: nothing was written"
    table = Table(title=title, title_justify="left")
    for name in ("", "before", "after", "change"):
        table.add_column(name, justify="right" if name else "left")
    table.add_row(
        "state per head, keys x values",
        before.describe_against(after),
        after.describe_against(before),
        relative_change_text(before.state_numel, after.state_numel),
    )
    for name, old, new in (
        ("recurrent state per sequence, float32", before.state_numel * 4, after.state_numel * 4),
        ("the same in bfloat16 (an engine option)", before.state_numel * 2, after.state_numel * 2),
        ("weights", surgery.bytes_before, surgery.bytes_after),
    ):
        table.add_row(name, bytes_text(old), bytes_text(new), relative_change_text(old, new))
    old, new = surgery.model.parameters, surgery.parameters_after
    table.add_row("parameters", f"{old:,}", f"{new:,}", relative_change_text(old, new))
    terminal.print_table(table)
    files = f"{len(surgery.shards)} weight files, {len(surgery.auxiliary_files)} other files"
    verb = "written to" if done else "would go to"
    terminal.print_text(f"{len(surgery.edits)} tensors cut; {files} {verb} {output}")
