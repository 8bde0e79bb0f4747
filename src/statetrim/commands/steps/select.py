"""statetrim select"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

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
        output, record, lambda _: run_with_progress(run, opened, options, "selecting"), Plan.load
    )
    before, after = opened.geometry, plan.pruned_geometry(opened.geometry)
    if as_json:
        chosen = {
            "plan": str(output),
            "method": plan.method,
            "keep": plan.keep,
            "value_method": plan.value_method,
            "keep_values": plan.keep_values,
        }
        if plan.kept_heads is not None:
            chosen |= {
                "head_method": plan.head_method,
                "keep_heads": plan.keep_heads,
                "num_k_heads": after.num_k_heads,
                "tensor_parallel": after.tensor_parallel,
            }
        terminal.print_json(chosen)
        return
    rows, layers = [], len(plan.kept)
    if plan.method != "none":
        rows += [
            ("method", _with_options(plan.method, plan.options)),
            ("keeps per key head", f"{plan.key_width_range} of {before.head_k_dim} channels"),
            ("layers x key heads", f"{layers} x {before.num_k_heads}"),
        ]
    if plan.value_method is not None:
        rows += [
            ("method for values", _with_options(plan.value_method, plan.value_options)),
            ("keeps per value head", f"{plan.value_width_range} of {before.head_v_dim} channels"),
            ("layers x value heads", f"{layers} x {before.heads('value')}"),
        ]
    if plan.kept_heads is not None:
        rows += [
            ("method for heads", str(plan.head_method)),
            ("keeps", f"{after.num_v_heads} of {before.num_v_heads} value heads"),
            ("with", f"{after.num_k_heads} of {before.num_k_heads} key heads"),
            ("layers", str(layers)),
        ]
    rows += [("seed", str(plan.seed)), ("written to", str(output))]
    terminal.print_table("Plan", (), rows)
    if plan.kept_heads is not None:
        terminal.note(tensor_parallel_text(before, after))


def _with_options(method: str, options: Mapping[str, Any]) -> str:
    return method + "".join(f", {name}={value}" for name, value in options.items())
