"""Which engines serve the shape, and how they are started."""

from collections.abc import Iterator

from ...artifacts.verification import Verification
from ...artifacts.verification.agreement import Kind
from ...serving.deployment import relevant_lines
from ...serving.engine_names import command_below_comment
from ...serving.engines import Compatibility, compatibility_of_geometry
from ..commands import command_arguments, serving_commands
from ..document import Block, Command, Missing, Table, Text
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
    """Where this very checkpoint ran, what is known of engines for its shape, and commands."""
    yield from _verification_blocks(findings)
    model, shape = (
        findings.cut or findings.original,
        findings.cut_geometry or findings.original_geometry,
    )
    if model is None or shape is None:
        arguments = command_arguments(findings)
        yield Missing(
            "Which engines serve it depends on the model type and the shape: give the checkpoint.",
            [f"statetrim inspect {arguments.cut}"],
        )
        return
    rows = relevant_lines(compatibility_of_geometry(str(model.config.get("model_type")), shape))
    if not rows:
        yield Text("No engine is known to serve or refuse this model type.")
        return
    yield Text(
        f"A head's state is {shape.shape} (keys x values). How it is known: run, a model "
        f"generated; kernel, one kernel ran; compiled, ahead of time only; source, read in the "
        f"code; report, a public report by others."
    )
    hardware_by_cells: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        name = f"{row.engine} {row.versions}"
        cells = (name, SUPPORT_TEXT[row.verdict], row.evidence, _remark_text(row))
        hardware_by_cells.setdefault(cells, []).append(row.hardware)
    yield Table(
        ("engine", "on", "verdict", "known by", "remark"),
        [
            (cells[0], ", ".join(hardware), *cells[1:])
            for cells, hardware in hardware_by_cells.items()
        ],
    )
    commands = serving_commands(findings)
    if commands:
        yield Command(
            [x for named_command in commands.items() for x in command_below_comment(*named_command)]
        )


def _verification_blocks(findings: Findings) -> Iterator[Block]:
    """What engines answered for this checkpoint and its original, judged by transformers."""
    runs = findings.verifications
    if not runs:
        if findings.cut is not None:
            yield Text(
                "This checkpoint itself was not run in an engine (statetrim verify does that); "
                "what follows is what is known of its shape."
            )
        return
    rows = [
        (
            run.version or run.engine,
            run.dtype,
            f"{agreement.model}, {agreement.kind}",
            f"{sum(agreement.agreed):,} of {sum(agreement.places):,}",
            f"{agreement.largest_gap:.2g}",
            _loss_text(run, agreement.model, agreement.kind),
        )
        for run in runs
        for agreement in run.agreements
    ]
    if rows:
        yield Table(
            (
                "engine",
                "in",
                "model and tokens",
                "choices as transformers",
                "largest gap",
                "loss, points",
            ),
            rows,
            caption="Tokens that the engine and transformers both choose, given the same text; "
            "gap: the logits by which transformers preferred another token; loss against "
            "the original, 95% interval",
        )
    for run in runs:
        for model, faults in run.faults.items():
            for fault in faults:
                yield Text(f"Fault of {model}: {fault}.", "note")


def _loss_text(run: Verification, model: str, kind: Kind) -> str:
    change = run.agreement_change(model, kind) if model != run.models[0] else None
    if change is None:
        return ""
    loss = -change
    return f"{loss.estimate:+.2f} ({loss.low:+.2f} to {loss.high:+.2f})"


def _remark_text(row: Compatibility) -> str:
    return row.error or (f"add {row.flag}" if row.flag else row.note)
