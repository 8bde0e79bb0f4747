"""Findings -> the first screen: whether to ship, why, and the few facts that decide it."""

from ..judging.verdict import Outcome
from ..serving.capacity.compare import memory_lines
from ..serving.deployment import command_comment, ship_verdict, steps_after_trim
from ..serving.engines import named_engines
from ..serving.matrix import ServedBy
from .document import Fact, Summary
from .findings import Findings, serving_commands

TONES = {
    Outcome.SHIP: "good",
    Outcome.RECOVER: "fair",
    Outcome.STOP: "bad",
    Outcome.UNKNOWN: "unknown",
}
MAX_QUALITY_LINES = 3


def title_text(findings: Findings) -> str:
    """The model's name, and its state's shape before and after if the original is given."""
    original, cut = findings.original, findings.cut
    if original is None or original.geometry == cut.geometry:
        return f"{(original or cut).name}: what a smaller state costs"
    before, after = original.geometry, cut.geometry
    shapes = f"{before.describe_against(after)} → {after.describe_against(before)}"
    return f"{original.name}: state {shapes}"


def build_summary(findings: Findings) -> Summary:
    """The verdict, facts on quality, memory and engines, and what to do next. Mismatches of the
    artifacts make it uncertain; they are notes, as warnings are."""
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
    if findings.original is not None:
        lines = memory_lines(findings.original, findings.cut.geometry, findings.counted_in)
        facts.append(Fact("Memory", lines))
    facts.append(_engine_fact(findings))
    if findings.original is not None:
        commands = list[str]()
        for step in steps_after_trim(verdict, findings.original, findings.cut):
            commands += [f"# {step.reason}", step.command]
        facts += [Fact("Next", [], commands)] if commands else []
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


def _engine_fact(findings: Findings) -> Fact:
    """Current engines that serve or refuse the shape, and the command of the requested or first."""
    cut = findings.cut
    lines = ServedBy.of(cut.model_type, cut.geometry, findings.engine).texts
    commands = serving_commands(findings)
    names = [engine.name for engine in named_engines().values()]
    serving = [name for name in commands if name in names]
    if len(serving) > 1:
        lines.append('"Where it runs" has the commands of the others')
    first = [command_comment(serving[0]), commands[serving[0]]] if serving else []
    return Fact("Engines", lines, first)
