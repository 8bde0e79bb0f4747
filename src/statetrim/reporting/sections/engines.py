"""Which engines serve the shape, and the commands that start them."""

from collections.abc import Iterator

from ...artifacts.verification import agreement_table
from ...serving.deployment import command_comment, engine_rows
from ...serving.matrix import compatibility_of_geometry
from ..document import Block, Command, Table, Text
from ..findings import Findings, serving_commands

SUPPORT_TEXT = {
    "fast": "usual kernels",
    "fallback": "serves, on a slower path",
    "plugin": "serves, with a plugin",
    "unknown": "not known",
    "refused": "refused",
    "wrong": "serves, and answers wrongly",
}


def blocks(findings: Findings) -> Iterator[Block]:
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
