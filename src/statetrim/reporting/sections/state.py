"""What a sequence costs before and after, compared with what is free without a cut."""

from collections.abc import Iterator

from ...geometry import KERNEL_TILE, Geometry
from ...maths.formatting import bytes_text, relative_change_text
from ...serving.alternatives import CONTEXT, MEMORY_GIB, alternatives
from ...serving.state_size import StateSize, stored_dtype
from ..charts import bar_chart
from ..commands import command_arguments
from ..document import Block, Missing, Picture, Table, Text
from ..findings import Findings

TITLE = "Memory before and after"


def blocks(findings: Findings) -> Iterator[Block]:
    original, cut = findings.original_geometry, findings.cut_geometry
    if cut is None or original is None or original == cut:
        arguments = command_arguments(findings)
        yield Missing(
            "The sizes before and after need both checkpoints.",
            [f"statetrim report {arguments.model} {arguments.cut} -o report"],
        )
        return
    rows = alternatives(original, cut, findings.original)
    chart = bar_chart(
        [(row.name, row.state_bytes, bytes_text(row.state_bytes)) for row in rows],
        "Recurrent state of one sequence: "
        + ", ".join(f"{row.name} {bytes_text(row.state_bytes)}" for row in rows),
    )
    if chart:
        yield Picture(chart, "Recurrent state of one sequence, all linear layers together.")
    full_row = rows[0]
    has_sequences = full_row.sequences is not None
    yield Table(
        (
            "state",
            "per sequence",
            "change",
            *(
                [f"sequences of {CONTEXT:,} tokens in {MEMORY_GIB:g} GiB of cache"]
                if has_sequences
                else []
            ),
        ),
        [
            (
                row.name,
                bytes_text(row.state_bytes),
                relative_change_text(full_row.state_bytes, row.state_bytes)
                if row is not full_row
                else "",
                *([f"{row.sequences:,}"] if row.sequences is not None else []),
            )
            for row in rows
        ],
    )
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
    yield (
        "state of a head, keys x values",
        original.describe_against(cut),
        cut.describe_against(original),
        relative_change_text(original.state_numel, cut.state_numel),
    )
    model = findings.original or findings.cut
    if model is not None:
        dtype = stored_dtype(model)
        old, new = (
            StateSize.from_geometry(geometry, dtype).conv_bytes for geometry in (original, cut)
        )
        yield (
            f"convolution state per sequence, {dtype}",
            bytes_text(old),
            bytes_text(new),
            relative_change_text(old, new),
        )
    if findings.original is not None and findings.cut is not None and findings.original.shards:
        counts = findings.original.parameters, findings.cut.parameters
        yield "parameters", f"{counts[0]:,}", f"{counts[1]:,}", relative_change_text(*counts)
        old, new = (
            sum(tensor.nbytes for _, tensor in checkpoint.tensors.values())
            for checkpoint in (findings.original, findings.cut)
        )
        yield "weights on disk", bytes_text(old), bytes_text(new), relative_change_text(old, new)
