"""statetrim prune"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from ...maths.formatting import bytes_text, relative_change_text
from ...surgery.options import PruneOptions
from .. import arguments, terminal
from ..arguments import FamilyFile, Json, Model
from ..command import command

if TYPE_CHECKING:
    from ...surgery.prune import Surgery

DryRun = Annotated[bool, typer.Option("--dry-run", help="Check everything, write nothing.")]


@command(PruneOptions)
def prune(
    model: Model,
    options: PruneOptions,
    dry_run: DryRun = False,
    family: FamilyFile = None,
    as_json: Json = False,
) -> None:
    from ...surgery.prune import prepare
    from ...surgery.prune import prune as run
    from ..progress import show_progress

    opened = arguments.open_model(model, family)
    surgery = prepare(opened, options.plan, uneven=options.uneven)
    if not dry_run:
        with show_progress("pruning") as progress:
            run.run(opened, replace(options, progress=progress))
    show_surgery(surgery, str(options.out), done=not dry_run, as_json=as_json)


def show_surgery(surgery: Surgery, output: str, *, done: bool, as_json: bool) -> None:
    """Print state, weights and parameters before and after; `done` is False for a dry run."""
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
    shapes = before.describe_against(after), after.describe_against(before)
    change = relative_change_text(before.state_numel, after.state_numel)
    rows = [("state per head, keys x values", *shapes, change)]
    for name, old, new in (
        ("recurrent state per sequence, float32", before.state_numel * 4, after.state_numel * 4),
        ("the same in bfloat16 (an engine option)", before.state_numel * 2, after.state_numel * 2),
        ("weights", surgery.bytes_before, surgery.bytes_after),
    ):
        rows.append((name, bytes_text(old), bytes_text(new), relative_change_text(old, new)))
    old, new = surgery.model.parameters, surgery.parameters_after
    rows.append(("parameters", f"{old:,}", f"{new:,}", relative_change_text(old, new)))
    title = "Pruned" if done else "Dry run: nothing was written"
    terminal.print_table(title, ("", "before", "after", "change"), rows)
    files = f"{len(surgery.shards)} weight files, {len(surgery.auxiliary_files)} other files"
    verb = "written to" if done else "would go to"
    terminal.print_text(f"{len(surgery.edits)} tensors cut; {files} {verb} {output}")
