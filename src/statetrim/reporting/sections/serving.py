"""How the cut is served: memory of a sequence before and after, engines, and their commands."""

from collections.abc import Iterator

from ...artifacts.state_sizes import StateSize, state_rows, stored_dtype, weight_bytes
from ...artifacts.verification import agreement_table
from ...cut.geometry import KERNEL_TILE
from ...maths.formatting import change_row
from ...serving.capacity.compare import capacity_rows, known_capacities, prefix_rows
from ...serving.deployment import command_comment, engine_rows
from ...serving.engines import find_engine
from ...serving.matrix import compatibility_of_geometry
from ...storage.checkpoint import Checkpoint
from ..document import Block, Command, Table, Text
from ..findings import Findings, missing, serving_commands


def memory(findings: Findings) -> Iterator[Block]:
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


SUPPORT_TEXT = {
    "fast": "usual kernels",
    "fallback": "serves, on a slower path",
    "plugin": "serves, with a plugin",
    "unknown": "not known",
    "refused": "refused",
    "wrong": "serves, and answers wrongly",
}


def engines(findings: Findings) -> Iterator[Block]:
    """Engines in which this checkpoint ran, the compatibility of its shape, and commands."""
    yield from _verification_blocks(findings)
    geometry = findings.cut.geometry
    lines = compatibility_of_geometry(findings.cut.model_type, geometry)
    rows = []
    for engine, hardware, verdict, *known in engine_rows(lines):
        rows.append((engine, hardware, SUPPORT_TEXT[verdict], *known))
    if not rows:
        yield Text("No engine is known to serve or refuse this model type.")
        return
    yield Text(
        f"A head's state is {geometry.shape} (keys x values). How it is known: run, a model "
        f"generated; interpreted, its kernels ran on a CPU with right values; kernel, one kernel "
        f"ran; compiled, ahead of time only; source, read in the code; report, a public report by "
        f"others."
    )
    yield Table(("engine", "on", "verdict", "known by", "remark"), rows)
    command_lines = []
    for engine, command in serving_commands(findings).items():
        command_lines += [command_comment(engine), command]
    if command_lines:
        yield Command(command_lines)


def _verification_blocks(findings: Findings) -> Iterator[Block]:
    """How often engines choose the same tokens as transformers, and a note per fault."""
    if not findings.verifications:
        yield Text(
            "This checkpoint itself was not run in an engine (statetrim verify does that); what "
            "follows is what is known of its shape."
        )
    for run in findings.verifications:
        table = agreement_table(run)
        if table.rows:
            caption = (
                f"{table.title}: tokens that both choose, given the same text; loss against the "
                "original, 95% interval; gap: the logits by which transformers preferred another "
                "token"
            )
            yield Table(table.header, table.rows, caption)
    for run in findings.verifications:
        for model, faults in run.faults.items():
            for fault in faults:
                yield Text(f"Fault of {model}: {fault}.", "note")
