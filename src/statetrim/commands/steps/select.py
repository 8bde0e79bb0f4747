"""statetrim select"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...defaults import HEAD_METHOD, KEY_METHOD, VALUE_METHOD
from .. import arguments, checks, terminal
from ..app import app
from ..arguments import (
    FamilyFile,
    Json,
    Keep,
    KeepHeads,
    KeepValues,
    Model,
    Share,
    Square,
    Widths,
)

if TYPE_CHECKING:
    from ...artifacts.plan import Plan
    from ...geometry import Geometry


Output = Annotated[Path, typer.Option("-o", "--output", help="File to write the plan to.")]
Statistics = Annotated[
    Path | None,
    typer.Option(
        help="Statistics from calibrate, for methods that need them.", callback=checks.must_exist
    ),
]
Method = Annotated[
    str,
    typer.Option(
        help="Selection method for key channels; l1 needs no statistics but loses more.",
        callback=checks.method,
    ),
]
Seed = Annotated[
    int, typer.Option(help="Random seed, for methods that use one.", callback=checks.seed)
]
Option = Annotated[list[str] | None, typer.Option(help="An option of the method, such as score=q.")]
ValueMethod = Annotated[
    str,
    typer.Option(
        help="Selection method for value channels; readout_l1 needs no statistics.",
        callback=checks.method,
    ),
]
ValueOption = Annotated[list[str] | None, typer.Option(help="An option of the value method.")]
HeadMethod = Annotated[
    str, typer.Option(help="Selection method for whole heads.", callback=checks.method)
]


@app.command()
def select(
    model: Model,
    output: Output,
    keep: Keep = None,
    keep_values: KeepValues = None,
    square: Square = None,
    widths: Widths = None,
    keep_heads: KeepHeads = None,
    statistics: Statistics = None,
    method: Method = KEY_METHOD,
    seed: Seed = 0,
    option: Option = None,
    value_method: ValueMethod = VALUE_METHOD,
    value_option: ValueOption = None,
    head_method: HeadMethod = HEAD_METHOD,
    share: Share = None,
    family: FamilyFile = None,
    as_json: Json = False,
) -> None:
    """Choose which channels or heads to keep, and write them to a plan."""
    options = arguments.parse_method_options(option or [])
    value_options = arguments.parse_method_options(value_option or [])
    shares = arguments.parse_shares(share or [])
    arguments.check_output_free(output)
    from ...artifacts.plan import Plan
    from ...selection.select import select as run
    from ...storage.checkpoint import require_prunable
    from ...storage.output import run_and_save
    from ..progress import show_progress

    opened = require_prunable(arguments.open_model(model, family))

    def choose(directory: Path | None) -> Plan:
        with show_progress("selecting") as progress:
            return run(
                opened,
                method,
                keep,
                keep_values=keep_values,
                square=square,
                widths=widths,
                keep_heads=keep_heads,
                head_method=head_method,
                value_method=value_method,
                value_options=value_options,
                seed=seed,
                statistics=statistics,
                shares=shares,
                progress=progress,
                **options,
            )

    record = {
        "format": "statetrim select",
        "source": opened.digest,
        "keep": [keep, keep_values, square, *([widths] if widths else [])],
        "methods": [method, options, value_method, value_options, seed],
        "statistics": [str(statistics), dict(shares or {})],
    } | ({"heads": [keep_heads, head_method]} if keep_heads else {})
    plan = run_and_save(output, record, choose, Plan.load)
    show_plan(plan, opened.geometry, str(output), as_json=as_json)


def show_plan(plan: Plan, before: Geometry, output: str, *, as_json: bool) -> None:
    """Print methods, requested amounts and what the plan keeps."""
    from rich.table import Table

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
    table = Table(title="Plan", title_justify="left", show_header=False)
    layers = len(plan.kept)
    if plan.method != "none":
        table.add_row("method", _with_options(plan.method, plan.options))
        table.add_row("asked to keep", plan.requested)
        table.add_row(
            "keeps per key head", f"{plan.key_width_range} of {before.head_k_dim} channels"
        )
        table.add_row("layers x key heads", f"{layers} x {before.num_k_heads}")
    if plan.value_method is not None:
        table.add_row("method for values", _with_options(plan.value_method, plan.value_options))
        table.add_row("asked to keep", str(plan.requested_values))
        table.add_row(
            "keeps per value head", f"{plan.value_width_range} of {before.head_v_dim} channels"
        )
        table.add_row("layers x value heads", f"{layers} x {before.heads('value')}")
    if plan.kept_heads is not None:
        after = plan.pruned_geometry(before)
        table.add_row("method for heads", str(plan.head_method))
        table.add_row("asked to keep", str(plan.requested_heads))
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
