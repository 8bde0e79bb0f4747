"""Console output of `select`."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from ...artifacts.plan import Plan
from ...geometry import Geometry
from .. import terminal
from ..state import tensor_parallel_text


def show_plan(plan: Plan, before: Geometry, output: str, *, as_json: bool) -> None:
    """Print methods, requested amounts and what the plan keeps."""
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
