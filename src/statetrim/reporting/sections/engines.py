"""Which engines serve the shape, and how they are started."""

from collections.abc import Iterator

from ...artifacts.verification import Verification
from ...artifacts.verification.agreement import Kind
from ...serving.deployment import worth_showing
from ...serving.engine_names import commented_command
from ...serving.engines import Compatibility, verdicts_on
from ..document import Block, Command, Missing, Table, Text
from ..findings import Findings
from ..names import names, serving_commands

TITLE = "Where it runs"
MEANING = {
    "fast": "usual kernels",
    "fallback": "serves, on a slower path",
    "unknown": "not known",
    "refused": "refused",
    "wrong": "serves, and answers wrongly",
}


def blocks(found: Findings) -> Iterator[Block]:
    """Where this very checkpoint ran, what is known of engines for its shape, and commands."""
    yield from _verified(found)
    model, shape = found.after or found.before, found.geometry_after or found.geometry_before
    if model is None or shape is None:
        words = names(found)
        yield Missing(
            "Which engines serve it depends on the model type and the shape: give the checkpoint.",
            [f"statetrim inspect {words.small}"],
        )
        return
    lines = worth_showing(verdicts_on(str(model.config.get("model_type")), shape))
    if not lines:
        yield Text("No engine is known to serve or refuse this model type.")
        return
    yield Text(
        f"A head's state is {shape.shape} (keys x values). How it is known: run, a model "
        f"generated; kernel, one kernel ran; compiled, ahead of time only; source, read in the "
        f"code; report, a public report by others."
    )
    alike: dict[tuple[str, ...], list[str]] = {}
    for line in lines:
        name = f"{line.engine} {line.versions}"
        same = (name, MEANING[line.verdict], line.evidence, _remark(line))
        alike.setdefault(same, []).append(line.hardware)
    yield Table(
        ("engine", "on", "verdict", "known by", "remark"),
        [(same[0], ", ".join(hardware), *same[1:]) for same, hardware in alike.items()],
    )
    commands = serving_commands(found)
    if commands:
        yield Command([x for one in commands.items() for x in commented_command(*one)])


def _verified(found: Findings) -> Iterator[Block]:
    """What engines answered for this checkpoint and its original, judged by transformers."""
    runs = found.verifications
    if not runs:
        if found.after is not None:
            yield Text(
                "This checkpoint itself was not run in an engine (statetrim verify does that); "
                "what follows is what is known of its shape."
            )
        return
    rows = [
        (
            run.version or run.engine,
            run.dtype,
            f"{one.model}, {one.kind}",
            f"{sum(one.agreed):,} of {sum(one.places):,}",
            f"{one.largest_gap:.2g}",
            _loss(run, one.model, one.kind),
        )
        for run in runs
        for one in run.agreements
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


def _loss(run: Verification, model: str, kind: Kind) -> str:
    moved = run.agreement_change(model, kind) if model != run.models[0] else None
    if moved is None:
        return ""
    lost = -moved
    return f"{lost.estimate:+.2f} ({lost.low:+.2f} to {lost.high:+.2f})"


def _remark(line: Compatibility) -> str:
    return line.error or (f"add {line.flag}" if line.flag else line.note)
