"""What a sequence costs before and after."""

from collections.abc import Callable, Iterator
from typing import Any

from ...geometry import KERNEL_TILE, Geometry
from ...maths.formatting import change, size
from ..charts import bar_chart
from ..document import Block, Picture, Table, Text
from ..findings import Findings
from .records import missing

TITLE = "State before and after"

FP32 = 4
GIB = 2**30


def blocks(found: Findings) -> Iterator[Block]:
    before, after = found.geometry_before, found.geometry_after
    if after is None or before is None:
        yield from missing(
            "The sizes before and after need both checkpoints.",
            "statetrim report MODEL SMALL -o report",
        )
        if after is not None:
            yield Table(("", "now"), [row[:2] for row in _sizes(after, after)])
        return
    old, new = (geometry.state_numel * FP32 for geometry in (before, after))
    chart = bar_chart(
        [("before", old, size(old)), ("after", new, size(new))],
        f"Recurrent state of one sequence: {size(old)} before, {size(new)} after",
    )
    if chart:
        caption = "Recurrent state of one sequence, all linear layers together, in float32."
        yield Picture(chart, caption)
    rows = _sizes(before, after)
    if found.before is not None and found.after is not None and found.before.shards:
        weights = [
            sum(tensor.nbytes for _, tensor in model.tensors.values())
            for model in (found.before, found.after)
        ]
        counts = found.before.parameters, found.after.parameters
        rows.append(("parameters", f"{counts[0]:,}", f"{counts[1]:,}", change(*counts)))
        rows.append(("weights on disk", *map(size, weights), change(*weights)))
    yield Table(("", "before", "after", "change"), rows)
    if after.head_k_dim % KERNEL_TILE:
        yield Text(
            f"Kernels pad {after.head_k_dim} key channels to a multiple of {KERNEL_TILE}: memory "
            f"shrinks, time does not.",
            "note",
        )


def _sizes(before: Geometry, after: Geometry) -> list[tuple[str, ...]]:
    def row(name: str, measure: Callable[[Geometry], int], show: Callable[[int], str]) -> Any:
        old, new = measure(before), measure(after)
        return name, show(old), show(new), change(old, new)

    return [
        (
            "state of a head, keys x values",
            f"{before.head_k_dim} x {before.head_v_dim}",
            f"{after.head_k_dim} x {after.head_v_dim}",
            change(before.head_k_dim * before.head_v_dim, after.head_k_dim * after.head_v_dim),
        ),
        row("recurrent state per sequence, float32", lambda g: g.state_numel * FP32, size),
        row("convolution state per sequence, values", lambda g: g.conv_numel, "{:,}".format),
        row(
            "sequences whose state fits in 16 GiB",
            lambda g: 16 * GIB // (g.state_numel * FP32),
            "{:,}".format,
        ),
    ]
