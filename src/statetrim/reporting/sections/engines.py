"""Which engines serve the shape, and the commands that start them."""

from collections.abc import Iterator

from ...artifacts.verification import loss_text
from ...serving.deployment import relevant_lines
from ...serving.engine_names import command_below_comment
from ...serving.engines import Compatibility, compatibility_of_geometry
from ..commands import missing, serving_commands
from ..document import Block, Command, Table, Text
from ..findings import Findings

TITLE = "Where it runs"
SUPPORT_TEXT = {
    "fast": "usual kernels",
    "fallback": "serves, on a slower path",
    "unknown": "not known",
    "refused": "refused",
    "wrong": "serves, and answers wrongly",
}


def blocks(findings: Findings) -> Iterator[Block]:
    """Engines in which this checkpoint ran, the compatibility of its shape, and commands."""
    yield from _verification_blocks(findings)
    model, geometry = findings.checkpoint, findings.geometry
    if model is None or geometry is None:
        yield missing(
            findings,
            "Which engines serve it depends on the model type and the shape: give the checkpoint.",
            "statetrim inspect {cut}",
        )
        return
    rows = relevant_lines(compatibility_of_geometry(str(model.config.get("model_type")), geometry))
    if not rows:
        yield Text("No engine is known to serve or refuse this model type.")
        return
    yield Text(
        f"A head's state is {geometry.shape} (keys x values). How it is known: run, a model "
        f"generated; interpreted, its kernels ran on a CPU with right values; kernel, one kernel "
        f"ran; compiled, ahead of time only; source, read in the code; report, a public report by "
        f"others."
    )
    hardware_by_cells: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        name = f"{row.engine} {row.versions}"
        cells = (name, SUPPORT_TEXT[row.verdict], row.evidence, _remark_text(row))
        hardware_by_cells.setdefault(cells, []).append(row.hardware)
    yield Table(
        ("engine", "on", "verdict", "known by", "remark"),
        [(name, ", ".join(on), *cells) for (name, *cells), on in hardware_by_cells.items()],
    )
    command_lines = []
    for engine, command in serving_commands(findings).items():
        command_lines += command_below_comment(engine, command)
    if command_lines:
        yield Command(command_lines)


def _verification_blocks(findings: Findings) -> Iterator[Block]:
    """How often engines choose the same tokens as transformers, and a note per fault.

    Without a verification a sentence that the cut was not run, or nothing without a cut.
    """
    runs = findings.verifications
    if not runs:
        if findings.cut is not None:
            yield Text(
                "This checkpoint itself was not run in an engine (statetrim verify does that); "
                "what follows is what is known of its shape."
            )
        return
    rows = []
    for run in runs:
        for agreement in run.agreements:
            model_and_tokens = f"{agreement.model}, {agreement.kind}"
            agreed = f"{sum(agreement.agreed):,} of {sum(agreement.places):,}"
            gap = f"{agreement.largest_gap:.2g}"
            engine, loss = run.version or run.engine, loss_text(run, agreement)
            rows.append((engine, run.dtype, model_and_tokens, agreed, gap, loss))
    if rows:
        header = ("engine", "in", "model and tokens", "choices as transformers", "largest gap")
        yield Table(
            (*header, "loss, points"),
            rows,
            caption="Tokens that the engine and transformers both choose, given the same text; "
            "gap: the logits by which transformers preferred another token; loss against "
            "the original, 95% interval",
        )
    for run in runs:
        for model, faults in run.faults.items():
            for fault in faults:
                yield Text(f"Fault of {model}: {fault}.", "note")


def _remark_text(row: Compatibility) -> str:
    return row.error or (f"add {row.flag}" if row.flag else row.note)
