"""Memory of a sequence before and after the cut, and with a bfloat16 state."""

from collections.abc import Iterator

from ...artifacts.state_sizes import state_rows
from ...geometry import KERNEL_TILE, Geometry
from ...maths.formatting import bytes_text, change_row, relative_change_text
from ...serving.capacity.compare import DEFAULT_CONTEXT, DEFAULT_MEMORY_GIB, alternatives
from ...serving.state_size import StateSize, stored_dtype, weight_bytes
from ..charts import bar_chart
from ..commands import missing
from ..document import Block, Picture, Table, Text
from ..findings import Findings

TITLE = "Memory before and after"


def blocks(findings: Findings) -> Iterator[Block]:
    """Bytes of state and sequences that fit, by cut and dtype, then other sizes.

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
    rows = alternatives(original, cut, findings.original)
    full = rows[0]
    header = ["state", "per sequence", "change"]
    if full.sequences is not None:
        header.append(
            f"sequences of {DEFAULT_CONTEXT:,} tokens in {DEFAULT_MEMORY_GIB:g} GiB of cache"
        )
    bars, cells = [], []
    for row in rows:
        size = bytes_text(row.state_bytes)
        change = relative_change_text(full.state_bytes, row.state_bytes) if row is not full else ""
        sequences = [] if row.sequences is None else [f"{row.sequences:,}"]
        bars.append((row.name, row.state_bytes, size))
        cells.append([row.name, size, change, *sequences])
    sizes = ", ".join(f"{name} {size}" for name, _, size in bars)
    yield Picture(
        bar_chart(bars, f"Recurrent state of one sequence: {sizes}"),
        "Recurrent state of one sequence, all linear layers together.",
    )
    yield Table(header, cells)
    yield Text(
        "A bfloat16 state needs no cut, only an engine's option (vLLM: --mamba-ssm-cache-dtype "
        "bfloat16); what it costs in quality was not measured here. Sequences are memory over "
        "what one of them holds, keys and values of softmax layers included; engines that round "
        "to blocks hold fewer."
    )
    yield Table(("", "before", "after", "change"), list(_size_rows(findings, original, cut)))
    if cut.head_k_dim % KERNEL_TILE:
        yield Text(
            f"Kernels pad {cut.head_k_dim} key channels to a multiple of {KERNEL_TILE}: memory "
            f"shrinks, time does not.",
            "note",
        )


def _size_rows(findings: Findings, original: Geometry, cut: Geometry) -> Iterator[tuple[str, ...]]:
    shapes, *_ = state_rows(original, cut)
    yield shapes
    before, after = findings.original, findings.cut
    model = before or after
    if model is not None:
        dtype = stored_dtype(model)
        old, new = (StateSize.from_geometry(x, dtype).conv_bytes for x in (original, cut))
        yield change_row(f"convolution state per sequence, {dtype}", old, new)
    if before is not None and after is not None and before.shards:
        yield change_row("parameters", before.parameters, after.parameters, "")
        yield change_row("weights on disk", weight_bytes(before), weight_bytes(after))
