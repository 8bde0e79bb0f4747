"""What a sequence costs before and after, compared with what is free without a cut."""

from collections.abc import Iterator

from ...geometry import KERNEL_TILE, Geometry
from ...maths.formatting import bytes_text, relative_change_text
from ...serving.alternatives import CONTEXT, MEMORY_GIB, alternatives
from ...serving.state_size import StateSize, stored_dtype
from ..charts import bar_chart
from ..document import Block, Missing, Picture, Table, Text
from ..findings import Findings
from ..names import names

TITLE = "Memory before and after"


def blocks(found: Findings) -> Iterator[Block]:
    before, after = found.geometry_before, found.geometry_after
    if after is None or before is None or before == after:
        words = names(found)
        yield Missing(
            "The sizes before and after need both checkpoints.",
            [f"statetrim report {words.model} {words.small} -o report"],
        )
        return
    rows = alternatives(before, after, found.before)
    chart = bar_chart(
        [(row.name, row.state_bytes, bytes_text(row.state_bytes)) for row in rows],
        "Recurrent state of one sequence: "
        + ", ".join(f"{row.name} {bytes_text(row.state_bytes)}" for row in rows),
    )
    if chart:
        yield Picture(chart, "Recurrent state of one sequence, all linear layers together.")
    whole = rows[0]
    counted = whole.sequences is not None
    yield Table(
        (
            "state",
            "per sequence",
            "change",
            *(
                [f"sequences of {CONTEXT:,} tokens in {MEMORY_GIB:g} GiB of cache"]
                if counted
                else []
            ),
        ),
        [
            (
                row.name,
                bytes_text(row.state_bytes),
                relative_change_text(whole.state_bytes, row.state_bytes)
                if row is not whole
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
    yield Table(("", "before", "after", "change"), list(_sizes(found, before, after)))
    if after.head_k_dim % KERNEL_TILE:
        yield Text(
            f"Kernels pad {after.head_k_dim} key channels to a multiple of {KERNEL_TILE}: memory "
            f"shrinks, time does not.",
            "note",
        )


def _sizes(found: Findings, before: Geometry, after: Geometry) -> Iterator[tuple[str, ...]]:
    yield (
        "state of a head, keys x values",
        before.describe_against(after),
        after.describe_against(before),
        relative_change_text(before.state_numel, after.state_numel),
    )
    model = found.before or found.after
    if model is not None:
        dtype = stored_dtype(model)
        old, new = (StateSize.of(geometry, dtype).conv_bytes for geometry in (before, after))
        yield (
            f"convolution state per sequence, {dtype}",
            bytes_text(old),
            bytes_text(new),
            relative_change_text(old, new),
        )
    if found.before is not None and found.after is not None and found.before.shards:
        counts = found.before.parameters, found.after.parameters
        yield "parameters", f"{counts[0]:,}", f"{counts[1]:,}", relative_change_text(*counts)
        old, new = (
            sum(tensor.nbytes for _, tensor in one.tensors.values())
            for one in (found.before, found.after)
        )
        yield "weights on disk", bytes_text(old), bytes_text(new), relative_change_text(old, new)
