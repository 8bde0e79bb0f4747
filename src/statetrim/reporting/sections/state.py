"""Memory of a sequence before and after the cut, and with a bfloat16 state."""

from collections.abc import Iterator

from ...artifacts.state_sizes import StateSize, state_rows, stored_dtype, weight_bytes
from ...cut.geometry import KERNEL_TILE
from ...maths.formatting import change_row
from ...serving.capacity.compare import capacity_rows, known_capacities, prefix_rows
from ...serving.engines import find_engine
from ...storage.checkpoint import Checkpoint
from ..document import Block, Table, Text
from ..findings import Findings, missing


def blocks(findings: Findings) -> Iterator[Block]:
    """Sequences that fit, bytes of state, and other sizes, before and after."""
    if findings.original is None:
        yield missing(
            findings,
            "The sizes before and after need the original.",
            "statetrim report {cut} --baseline {model} -o report",
        )
        return
    cut = findings.cut.geometry
    serving = findings.counted_in
    rows = known_capacities(findings.original, cut, serving)
    counts = [(*cells, "") for cells in (*capacity_rows(rows), *prefix_rows(rows))]
    caption = f"Counted: {serving.counted}; gains are over the original as the engine serves it"
    yield Table(
        ("", "before", "after", "change"),
        [*counts, *_size_rows(findings.original, findings.cut)],
        caption if counts else "",
    )
    engine = find_engine(None)
    yield Text(
        f"The dtype of the state is an engine's option ({engine.name}: {engine.state_dtype_flag}) "
        "and needs no cut; fewer bits cost quality too."
    )
    if cut.head_k_dim % KERNEL_TILE:
        yield Text(
            f"Kernels pad {cut.head_k_dim} key channels to a multiple of {KERNEL_TILE}: memory "
            f"shrinks, time does not.",
            "note",
        )


def _size_rows(before: Checkpoint, after: Checkpoint) -> Iterator[tuple[str, ...]]:
    yield from state_rows(before.geometry, after.geometry)
    dtype = stored_dtype(before)
    old, new = (StateSize.from_geometry(x.geometry, dtype).conv_bytes for x in (before, after))
    yield change_row(f"convolution state per sequence, {dtype}", old, new)
    if before.shards:
        yield change_row("parameters", before.parameters, after.parameters, "")
        yield change_row("weights on disk", weight_bytes(before), weight_bytes(after))
