"""The sizes of a state: what a cut saves, compared with a bfloat16 state."""

from collections.abc import Mapping, Sequence

from rich.table import Table

from ..geometry import Geometry
from ..maths.formatting import bytes_text
from ..serving.alternatives import alternatives


def state_size_text(before: Geometry, after: Geometry) -> str:
    """Before and after the cut, in both dtypes."""
    original, original_bfloat16, cut, cut_bfloat16 = (
        bytes_text(option.state_bytes) for option in alternatives(before, after)
    )
    return (
        f"recurrent state per sequence: {original} -> {cut} in float32; {original_bfloat16} -> {cut_bfloat16} in bfloat16 "
        f"(an engine option, with or without the cut)"
    )


def tensor_parallel_text(before: Geometry, after: Geometry) -> str:
    """Over how many devices the heads that are left can be divided."""
    old, new = (_join_with_or(geometry.tensor_parallel) for geometry in (before, after))
    return (
        f"tensor parallelism: {after.num_k_heads} key heads can be shared by {new} devices "
        f"(before: {old})"
    )


def _join_with_or(sizes: Sequence[int]) -> str:
    *most, last = map(str, sizes)
    return f"{', '.join(most)} or {last}" if most else last


def state_size_json(before: Geometry, after: Geometry) -> dict[str, list[int]]:
    """The same for JSON."""
    original, original_bfloat16, cut, cut_bfloat16 = (
        option.state_bytes for option in alternatives(before, after)
    )
    return {
        "state_bytes": [original, cut],
        "state_bytes_bfloat16": [original_bfloat16, cut_bfloat16],
    }


def shapes_table(
    title: str,
    before: Geometry,
    shapes: Mapping[str, Geometry],
    refused: Mapping[str, Sequence[str]],
) -> Table:
    """What a sequence takes in each shape, and who does not serve it; the whole state first."""
    table = Table(title=title, title_justify="left")
    sizes = ("per sequence, float32", "in bfloat16")
    for name in ("keys x values", "of the state", *sizes, "refused by"):
        table.add_column(name, justify="left" if name == "refused by" else "right")
    for name, after in {"no cut": before, **shapes}.items():
        _, _, cut, cut_bfloat16 = alternatives(before, after)
        share = f"{after.state_numel / before.state_numel:.0%}"
        refused_text = ", ".join(refused.get(name, [])) or (
            "" if name == "no cut" else "none known"
        )
        table.add_row(
            name,
            share,
            bytes_text(cut.state_bytes),
            bytes_text(cut_bfloat16.state_bytes),
            refused_text,
        )
    return table
