"""statetrim prune, statetrim refit"""

from typing import Annotated

import typer

from ...maths.formatting import change_row, count_of, relative_change_text
from ...surgery.options import PruneOptions, RefitOptions
from .. import arguments, terminal
from ..arguments import FamilyFile, Json, Model
from ..command import command

DryRun = Annotated[bool, typer.Option("--dry-run", help="Check everything, write nothing.")]


@command(PruneOptions)
def prune(
    model: Model,
    options: PruneOptions,
    dry_run: DryRun = False,
    family: FamilyFile = None,
    as_json: Json = False,
) -> None:
    from ...artifacts.state_sizes import state_json, state_rows
    from ...surgery.prune import prepare
    from ...surgery.prune import prune as run
    from ..progress import run_with_progress

    opened = arguments.open_model(model, family)
    surgery = prepare(opened, options.plan, uneven=options.uneven)
    if not dry_run:
        run_with_progress(run, opened, options)
    weight_bytes = surgery.bytes_before, surgery.bytes_after
    parameters = surgery.model.parameters, surgery.parameters_after
    if as_json:
        terminal.print_json(
            {
                "output": str(options.out),
                "dry_run": dry_run,
                "tensors_cut": len(surgery.edits),
                **state_json(opened.geometry, surgery.geometry),
                "weight_bytes": weight_bytes,
                "parameters": parameters,
            }
        )
        return
    rows = [
        *state_rows(opened.geometry, surgery.geometry),
        change_row("weights", *weight_bytes),
        change_row("parameters", *parameters, ""),
    ]
    title = "Dry run: nothing was written" if dry_run else "Pruned"
    terminal.print_table(title, ("", "before", "after", "change"), rows)
    shards, others = len(surgery.shards), len(surgery.auxiliary_files)
    files = f"{count_of(shards, 'weight file')}, {count_of(others, 'other file')}"
    verb = "would go to" if dry_run else "written to"
    terminal.print_text(
        f"{count_of(len(surgery.edits), 'tensor')} cut; {files} {verb} {options.out}"
    )


PrunedModel = Annotated[str, typer.Argument(help="A pruned checkpoint.")]


@command(RefitOptions)
def refit(
    model: PrunedModel, options: RefitOptions, family: FamilyFile = None, as_json: Json = False
) -> None:
    from ...artifacts.steps import RefitRecord
    from ...surgery.refit import refit as run
    from ..progress import run_with_progress

    opened = arguments.open_model(model, family)
    fitted = run_with_progress(run, opened, options)
    layers = RefitRecord.of_model(fitted).layers
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
