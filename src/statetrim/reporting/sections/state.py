"""Memory of a sequence before and after the cut, and with a bfloat16 state."""

from collections.abc import Iterator

from ...artifacts.state_sizes import state_rows
from ...geometry import KERNEL_TILE, Geometry
from ...maths.formatting import bytes_text, change_row
from ...serving.capacity.compare import capacity_rows, known_capacities
from ...serving.state_size import StateSize, stored_dtype, weight_bytes
from ..charts import bar_chart
from ..commands import missing
from ..document import Block, Picture, Table, Text
from ..findings import Findings

TITLE = "Memory before and after"


def blocks(findings: Findings) -> Iterator[Block]:
    """Sequences that fit, bytes of state, and other sizes, before and after.

    Only a `Missing` block if a geometry is not known, or both are equal.
    """
    original, cut = findings.original_geometry, findings.cut_geometry
    if cut is None or original is None or original == cut:
        yield missing(
            findings,
            "The sizes before and after need both checkpoints.",
            "statetrim report {model} {cut} -o report",
        )
        return
    bars = []
    for dtype, nbytes in (("float32", 4), ("bfloat16", 2)):
        for name, geometry in (("original", original), ("cut", cut)):
            size = nbytes * geometry.state_numel
            bars.append((f"{name}, {dtype}", size, bytes_text(size)))
    texts = ", ".join(f"{name} {size}" for name, _, size in bars)
    yield Picture(
        bar_chart(bars, f"Recurrent state of one sequence: {texts}"),
        "Recurrent state of one sequence, all linear layers together.",
    )
    serving = findings.counted_in
    rows = known_capacities(findings.original, cut, serving)
    counts = [(*cells, "") for cells in capacity_rows(rows)]
    caption = f"Counted: {serving.counted}; gains are over the original as the engine serves it"
    yield Table(
        ("", "before", "after", "change"),
        [*counts, *_size_rows(findings, original, cut)],
        caption if counts else "",
    )
    yield Text(
        "The dtype of the state is an engine's option (vLLM: --mamba-ssm-cache-dtype) and needs no "
        "cut; fewer bits cost quality too."
    )
    if cut.head_k_dim % KERNEL_TILE:
        yield Text(
            f"Kernels pad {cut.head_k_dim} key channels to a multiple of {KERNEL_TILE}: memory "
            f"shrinks, time does not.",
            "note",
        )


def _size_rows(findings: Findings, original: Geometry, cut: Geometry) -> Iterator[tuple[str, ...]]:
    yield from state_rows(original, cut)
    before, after = findings.original, findings.cut
    model = before or after
    if model is not None:
        dtype = stored_dtype(model)
        old, new = (StateSize.from_geometry(x, dtype).conv_bytes for x in (original, cut))
        yield change_row(f"convolution state per sequence, {dtype}", old, new)
    if before is not None and after is not None and before.shards:
        yield change_row("parameters", before.parameters, after.parameters, "")
        yield change_row("weights on disk", weight_bytes(before), weight_bytes(after))
