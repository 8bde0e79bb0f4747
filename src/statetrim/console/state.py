"""The sizes of a state: what a cut saves, compared with a bfloat16 state."""

from collections.abc import Mapping, Sequence

from rich.table import Table

from ..geometry import Geometry
from ..maths.formatting import size
from ..serving.alternatives import alternatives


def state_sentence(before: Geometry, after: Geometry) -> str:
    """Before and after the cut, in both dtypes."""
    whole, half, cut, both = (size(one.state_bytes) for one in alternatives(before, after))
    return (
        f"recurrent state per sequence: {whole} -> {cut} in float32; {half} -> {both} in bfloat16 "
        f"(an engine option, with or without the cut)"
    )


def shared_by(before: Geometry, after: Geometry) -> str:
    """Over how many devices the heads that are left can be divided."""
    old, new = (_listed(one.tensor_parallel) for one in (before, after))
    return (
        f"tensor parallelism: {after.num_k_heads} key heads can be shared by {new} devices "
        f"(before: {old})"
    )


def _listed(sizes: Sequence[int]) -> str:
    *most, last = map(str, sizes)
    return f"{', '.join(most)} or {last}" if most else last


def state_bytes(before: Geometry, after: Geometry) -> dict[str, list[int]]:
    """The same for JSON."""
    whole, half, cut, both = (one.state_bytes for one in alternatives(before, after))
    return {"state_bytes": [whole, cut], "state_bytes_bfloat16": [half, both]}


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
        _, _, cut, both = alternatives(before, after)
        share = f"{after.state_numel / before.state_numel:.0%}"
        said = ", ".join(refused.get(name, [])) or ("" if name == "no cut" else "none known")
        table.add_row(name, share, size(cut.state_bytes), size(both.state_bytes), said)
    return table
