"""Findings -> the first screen: whether to ship, why, and the few facts that decide it."""

from collections.abc import Iterator
from pathlib import Path

from ..artifacts.state_sizes import state_text
from ..geometry import Geometry
from ..judging.recommendation import Recommendation, recommend
from ..judging.verdict import Outcome, metric_label
from ..request import parse_request
from ..serving.capacity.compare import capacity_text, known_capacities
from ..serving.deployment import ship_verdict
from ..serving.engine_names import (
    BFLOAT16_ENGINES,
    ENGINE_NAMES,
    command_below_comment,
    requested_engine,
)
from ..serving.engines import ServedBy
from ..serving.target import resolve_target
from .commands import command_arguments, next_commands, serving_commands, trim_command
from .document import Fact, Summary
from .findings import Findings

TONES = {
    Outcome.SHIP: "good",
    Outcome.RECOVER: "fair",
    Outcome.STOP: "bad",
    Outcome.UNKNOWN: "unknown",
}
MAX_QUALITY_LINES = 3


def build_summary(findings: Findings) -> Summary:
    """Summarize the cut, or a comparison of shapes if neither a cut nor scores were given."""
    if findings.decision is not None and findings.cut is None and findings.scores is None:
        return _decision_summary(findings, recommend(findings.decision.points))
    return _cut_summary(findings)


def title_text(findings: Findings) -> str:
    """The model's name, and its state's shape before and after where both are known and differ.

    Without a checkpoint, the name is that of the compared model, or of the first file.
    """
    original, cut = findings.original_geometry, findings.cut_geometry
    model = findings.original or findings.cut
    if model and model.name:
        name = model.name
    elif findings.decision and findings.decision.model:
        name = findings.decision.model
    else:
        name = Path(next(iter(findings.sources.values()))).stem
    if original and cut and original != cut:
        return f"{name}: state {original.describe_against(cut)} → {cut.describe_against(original)}"
    return f"{name}: what a smaller state costs"


def _cut_summary(findings: Findings) -> Summary:
    """The verdict, with facts on quality, memory, engines and, if recovery may help, its command.

    Notes are mismatches of the artifacts, which make it uncertain, and warnings of the verdict and
    of trim's record.
    """
    mismatches = list(findings.mismatches)
    verdict = ship_verdict(
        findings.scores,
        findings.scored_name,
        findings.cut,
        mismatches,
        findings.engine_faults,
        findings.chosen_by,
    )
    facts = [Fact("Quality", verdict.facts[:MAX_QUALITY_LINES])] if verdict.facts else []
    facts += _memory_fact(findings, findings.cut_geometry)
    facts += _engine_fact(findings)
    steps = next_commands(findings, verdict)
    if steps:
        reasons = [step.reason for step in steps]
        facts.append(Fact("Next", reasons, [step.command for step in steps]))
    recorded_warnings = findings.trim.warnings if findings.trim else ()
    notes = [f"These artifacts do not belong together: {text}" for text in mismatches]
    notes += [f"Warning: {text}" for text in dict.fromkeys((*verdict.warnings, *recorded_warnings))]
    return Summary(
        answer=str(verdict.outcome).capitalize(),
        tone=TONES[verdict.outcome],
        reason=verdict.reason,
        facts=facts,
        notes=notes,
    )


def _decision_summary(findings: Findings, advice: Recommendation) -> Summary:
    cut, original = advice.chosen, findings.original_geometry
    if cut is None:
        return Summary("No shape recommended", TONES[Outcome.UNKNOWN], advice.reason, [])
    quality = [f"{metric_label(loss)}: {loss.sentence}" for loss in cut.losses[:MAX_QUALITY_LINES]]
    after = original and original.resized(cut.point.keep, cut.point.keep_values)
    if cut.point.widths:
        request = parse_request(cut.point.widths)
        after = resolve_target(findings.original, request).after if findings.original else None
    facts = [Fact("Quality", quality), *_memory_fact(findings, after)]
    command = trim_command(findings, cut.point.widths or str(cut.point))
    if cut.is_within:
        line = "cut, check and measure it, with a random cut for comparison"
        facts.append(Fact("Next", [line], [command]))
        return Summary(f"Take {cut.point}", TONES[Outcome.SHIP], advice.reason, facts)
    recover = f"{command} --recover {command_arguments(findings).tokens}"
    facts.append(Fact("Next", ["recover the nearest, or compare larger shapes"], [recover]))
    return Summary("No shape recommended", TONES[Outcome.STOP], advice.reason, facts)


def _memory_fact(findings: Findings, cut_geometry: Geometry | None) -> Iterator[Fact]:
    """One fact: sequences that fit, and bytes of state, of the original and of the cut; none
    without both geometries."""
    original, serving = findings.original_geometry, findings.counted_in
    if original is None or cut_geometry is None:
        return
    has_option = ENGINE_NAMES[serving.engine] in BFLOAT16_ENGINES
    lines = [state_text(original, cut_geometry, with_bfloat16=has_option)]
    if rows := known_capacities(findings.original, cut_geometry, serving):
        lines.insert(0, capacity_text(rows, serving))
    yield Fact("Memory", lines)


def _engine_fact(findings: Findings) -> Iterator[Fact]:
    """One fact: current engines that serve or refuse the shape, and for a cut the command of the
    requested or first engine; none without a checkpoint and a shape."""
    model, geometry = findings.checkpoint, findings.cut_geometry
    if model is None or geometry is None:
        return
    model_type, first = str(model.config.get("model_type")), requested_engine(findings.trim)
    lines = ServedBy.of(model_type, geometry, first).texts
    commands = serving_commands(findings)
    serving = [name for name in commands if name in ENGINE_NAMES.values()]
    command_lines: list[str] = []
    if serving and findings.cut:
        command_lines = command_below_comment(serving[0], commands[serving[0]])
        if len(serving) > 1:
            lines.append('"Where it runs" has the commands of the others')
    yield Fact("Engines", lines, command_lines)
