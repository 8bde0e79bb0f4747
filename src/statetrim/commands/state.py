"""Sizes of the state before and after a cut, each in float32 and in bfloat16."""

from collections.abc import Mapping, Sequence

from rich.table import Table

from ..geometry import Geometry
from ..maths.formatting import bytes_text
from ..option_checks import choices_text
from ..serving.capacity.alternatives import alternatives
from . import terminal


def state_size_text(before: Geometry, after: Geometry) -> str:
    """The state's bytes per sequence before and after the cut, in both dtypes, as a sentence."""
    original, original_bfloat16, cut, cut_bfloat16 = alternatives(before, after)
    float32 = f"{bytes_text(original.state_bytes)} -> {bytes_text(cut.state_bytes)}"
    bfloat16 = (
        f"{bytes_text(original_bfloat16.state_bytes)} -> {bytes_text(cut_bfloat16.state_bytes)}"
    )
    return (
        f"recurrent state per sequence: {float32} in float32; {bfloat16} in bfloat16 "
        f"(an engine option, with or without the cut)"
    )


def tensor_parallel_text(before: Geometry, after: Geometry) -> str:
    """Over how many devices the remaining heads can be divided, as a sentence."""
    return (
        f"tensor parallelism: {after.num_k_heads} key heads can be shared by "
        f"{choices_text(map(str, after.tensor_parallel))} devices "
        f"(before: {choices_text(map(str, before.tensor_parallel))})"
    )


def state_size_json(before: Geometry, after: Geometry) -> dict[str, list[int]]:
    """The state's bytes per sequence before and after the cut, in both dtypes, for JSON."""
    original, original_bfloat16, cut, cut_bfloat16 = alternatives(before, after)
    return {
        "state_bytes": [original.state_bytes, cut.state_bytes],
        "state_bytes_bfloat16": [original_bfloat16.state_bytes, cut_bfloat16.state_bytes],
    }


def shapes_table(
    title: str,
    before: Geometry,
    shapes: Mapping[str, Geometry],
    refused: Mapping[str, Sequence[str]],
) -> Table:
    """State per sequence of each shape and the engines that refuse it; the original comes first."""
    sizes = ("of the state", "per sequence, float32", "in bfloat16")
    table = terminal.new_table(title, "keys x values", *sizes, left=0)
    table.add_column("refused by")
    for name, after in {"no cut": before, **shapes}.items():
        _, _, cut, cut_bfloat16 = alternatives(before, after)
        share = f"{after.state_numel / before.state_numel:.0%}"
        none_refuse = "" if name == "no cut" else "none known"
        refused_text = ", ".join(refused.get(name, [])) or none_refuse
        table.add_row(
            name,
            share,
            bytes_text(cut.state_bytes),
            bytes_text(cut_bfloat16.state_bytes),
            refused_text,
        )
    return table
