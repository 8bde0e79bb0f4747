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

    if as_json:
        terminal.print_json(
            {
                "plan": output,
                "method": plan.method,
                "keep": plan.keep,
                "value_method": plan.value_method,
                "keep_values": plan.keep_values,
                **_heads_json(plan, before),
            }
        )
        return
    table = terminal.new_table("Plan", left=0)
    layers = len(plan.kept)
    if plan.method != "none":
        table.add_row("method", _with_options(plan.method, plan.options))
        table.add_row(
            "keeps per key head", f"{plan.key_width_range} of {before.head_k_dim} channels"
        )
        table.add_row("layers x key heads", f"{layers} x {before.num_k_heads}")
    if plan.value_method is not None:
        table.add_row("method for values", _with_options(plan.value_method, plan.value_options))
        table.add_row(
            "keeps per value head", f"{plan.value_width_range} of {before.head_v_dim} channels"
        )
        table.add_row("layers x value heads", f"{layers} x {before.heads('value')}")
    if plan.kept_heads is not None:
        after = plan.pruned_geometry(before)
        table.add_row("method for heads", str(plan.head_method))
        table.add_row("keeps", f"{after.num_v_heads} of {before.num_v_heads} value heads")
        table.add_row("with", f"{after.num_k_heads} of {before.num_k_heads} key heads")
        table.add_row("layers", str(layers))
    table.add_row("seed", str(plan.seed))
    table.add_row("written to", output)
    terminal.print_table(table)
    if plan.kept_heads is not None:
        terminal.note(tensor_parallel_text(before, plan.pruned_geometry(before)))


def _heads_json(plan: Plan, before: Geometry) -> dict[str, Any]:
    """The fields of a plan that removes heads; empty for any other plan."""
    if plan.kept_heads is None:
        return {}
    after = plan.pruned_geometry(before)
    return {
        "head_method": plan.head_method,
        "keep_heads": plan.keep_heads,
        "num_k_heads": after.num_k_heads,
        "tensor_parallel": after.tensor_parallel,
    }


def _with_options(method: str, options: Mapping[str, Any]) -> str:
    return method + "".join(f", {name}={value}" for name, value in options.items())
