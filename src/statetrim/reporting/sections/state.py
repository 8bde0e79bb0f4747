"""Memory of a sequence before and after the cut, and with a bfloat16 state."""

from collections.abc import Iterator

from ...geometry import KERNEL_TILE, Geometry
from ...maths.formatting import bytes_text, relative_change_text
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
    bars, sizes, cells = [], [], []
    for row in rows:
        size_text = bytes_text(row.state_bytes)
        bars.append((row.name, row.state_bytes, size_text))
        sizes.append(f"{row.name} {size_text}")
        change = relative_change_text(full.state_bytes, row.state_bytes) if row is not full else ""
        cells.append([row.name, size_text, change])
        if row.sequences is not None:
            cells[-1].append(f"{row.sequences:,}")
    chart = bar_chart(bars, f"Recurrent state of one sequence: {', '.join(sizes)}")
    if chart:
        yield Picture(chart, "Recurrent state of one sequence, all linear layers together.")
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
    """Rows of (name, before, after, change)."""
    yield (
        "state of a head, keys x values",
        original.describe_against(cut),
        cut.describe_against(original),
        relative_change_text(original.state_numel, cut.state_numel),
    )
    model = findings.original or findings.cut
    if model is not None:
        dtype = stored_dtype(model)
        old = StateSize.from_geometry(original, dtype).conv_bytes
        new = StateSize.from_geometry(cut, dtype).conv_bytes
        yield _bytes_row(f"convolution state per sequence, {dtype}", old, new)
    if findings.original is not None and findings.cut is not None and findings.original.shards:
        old, new = findings.original.parameters, findings.cut.parameters
        yield "parameters", f"{old:,}", f"{new:,}", relative_change_text(old, new)
        old, new = weight_bytes(findings.original), weight_bytes(findings.cut)
        yield _bytes_row("weights on disk", old, new)


def _bytes_row(name: str, old: int, new: int) -> tuple[str, ...]:
    return name, bytes_text(old), bytes_text(new), relative_change_text(old, new)
