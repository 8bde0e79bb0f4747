"""statetrim select"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...options import as_record
from ...selection.options import SelectOptions
from .. import arguments, terminal
from ..arguments import FamilyFile, Json, Model
from ..command import command

if TYPE_CHECKING:
    from ...artifacts.plan import Plan
    from ...geometry import Geometry

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
    from ...selection.select import select as run
    from ...storage.checkpoint import require_prunable
    from ...storage.output import run_and_save
    from ..progress import show_progress

    opened = require_prunable(arguments.open_model(model, family))

    def choose(directory: Path | None) -> Plan:
        with show_progress("selecting") as progress:
            return run.run(opened, replace(options, progress=progress))

    record = {
        "format": "statetrim select",
        "source": opened.digest,
        "options": as_record(options),
    }
    plan = run_and_save(output, record, choose, Plan.load)
    show_plan(plan, opened.geometry, str(output), as_json=as_json)


def show_plan(plan: Plan, before: Geometry, output: str, *, as_json: bool) -> None:
    """Print methods and what the plan keeps."""
    from ..state import tensor_parallel_text

    after, heads = plan.pruned_geometry(before), dict[str, Any]()
    if plan.kept_heads is not None:
        heads = {
            "head_method": plan.head_method,
            "keep_heads": plan.keep_heads,
            "num_k_heads": after.num_k_heads,
            "tensor_parallel": after.tensor_parallel,
        }
    if as_json:
        terminal.print_json(
            {
                "plan": output,
                "method": plan.method,
                "keep": plan.keep,
                "value_method": plan.value_method,
                "keep_values": plan.keep_values,
                **heads,
            }
        )
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
    if heads:
        rows += [
            ("method for heads", str(plan.head_method)),
            ("keeps", f"{after.num_v_heads} of {before.num_v_heads} value heads"),
            ("with", f"{after.num_k_heads} of {before.num_k_heads} key heads"),
            ("layers", str(layers)),
        ]
    rows += [("seed", str(plan.seed)), ("written to", output)]
    terminal.print_table("Plan", (), rows)
    if heads:
        terminal.note(tensor_parallel_text(before, after))


def _with_options(method: str, options: Mapping[str, Any]) -> str:
    return method + "".join(f", {name}={value}" for name, value in options.items())
