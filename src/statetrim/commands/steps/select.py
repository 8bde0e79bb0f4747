"""statetrim select"""

from pathlib import Path
from typing import Annotated

import typer

from ...options import as_record
from ...selection.options import SelectOptions
from .. import arguments, terminal
from ..arguments import FamilyFile, Json, Model
from ..command import command

Output = Annotated[Path, typer.Option("-o", "--output", help="File to write the plan to.")]


@command(SelectOptions)
def select(
    model: Model,
    output: Output,
    options: SelectOptions,
    family: FamilyFile = None,
    as_json: Json = False,
) -> None:
    arguments.check_output_free(output)
    from ...artifacts.plan import Plan
    from ...artifacts.state_sizes import tensor_parallel_text
    from ...selection.select import select as run
    from ...storage.checkpoint import require_prunable
    from ...storage.output import run_and_save
    from ..progress import run_with_progress

    opened = require_prunable(arguments.open_model(model, family))
    record = {
        "format": "statetrim select",
        "source": opened.digest,
        "options": as_record(options),
    }
    plan = run_and_save(
        output, record, lambda _: run_with_progress(run, opened, options), Plan.load
    )
    before, after = opened.geometry, plan.pruned_geometry(opened.geometry)
    if as_json:
        axes = {}
        for axis, chosen in plan.axes.items():
            keep = max(plan.counts(axis).values())
            axes[axis] = {"method": chosen.method, "options": dict(chosen.options), "keep": keep}
        parallel = {"num_k_heads": after.num_k_heads, "tensor_parallel": after.tensor_parallel}
        terminal.print_json({"plan": str(output), "to": plan.to, "axes": axes, **parallel})
        return
    shapes = f"{before.describe_against(after)} -> {after.describe_against(before)}"
    *rows, _ = plan.table().rows
    rows = [*rows, ("state of a head, keys x values", shapes), ("written to", str(output))]
    terminal.print_table("Plan", (), rows)
    if "head" in plan.axes:
        terminal.note(tensor_parallel_text(before, after))
