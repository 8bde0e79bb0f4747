"""Findings -> the first screen: whether to ship, why, and the two or three facts that decide it."""

from collections.abc import Iterator
from pathlib import Path

from ..artifacts.recommendation import JudgedCut, Recommendation, recommend
from ..artifacts.verdict import Outcome, Verdict, metric_label
from ..geometry import Geometry
from ..maths.formatting import bytes_text, relative_change_text
from ..serving.alternatives import CONTEXT, MEMORY_GIB, alternatives
from ..serving.deployment import ship_verdict
from ..serving.engine_names import command_below_comment
from ..serving.engines import compatibility_of_geometry
from .commands import command_arguments, recover_command, serving_commands, trim_command
from .document import Fact, Summary
from .findings import Findings
from .records import as_mapping, as_strings

TONES = {
    Outcome.SHIP: "good",
    Outcome.RECOVER: "fair",
    Outcome.STOP: "bad",
    Outcome.UNKNOWN: "unknown",
}
MAX_QUALITY_LINES = 3  # lines of quality on the first screen


def build_summary(findings: Findings) -> Summary:
    """Of the cut where there is one, else of the sweep."""
    if findings.sweep is not None and findings.cut is None and findings.scores is None:
        return _sweep_summary(findings, recommend(findings.sweep))
    return _cut_summary(findings, verdict_for(findings))


def verdict_for(findings: Findings) -> Verdict:
    """The verdict on the report's checkpoint; scores that do not belong to it are doubted."""
    return ship_verdict(
        findings.scores,
        findings.scored_name,
        findings.cut,
        doubts=list(findings.mismatches),
        faults=findings.engine_faults,
    )


def title_text(findings: Findings) -> str:
    original, cut = findings.original_geometry, findings.cut_geometry
    model = findings.original or findings.cut
    name = model.name if model else ""
    if not name:
        name = (
            findings.sweep.model
            if findings.sweep
            else Path(next(iter(findings.sources.values()))).stem
        )
    if original and cut and original != cut:
        return f"{name}: state {original.describe_against(cut)} → {cut.describe_against(original)}"
    return f"{name}: what a smaller state costs"


def _cut_summary(findings: Findings, verdict: Verdict) -> Summary:
    facts = [Fact("Quality", verdict.facts[:MAX_QUALITY_LINES])] if verdict.facts else []
    recorded_warnings = as_strings(as_mapping(findings.trim).get("warnings"))
    notes = [f"These artifacts do not belong together: {text}" for text in findings.mismatches]
    notes += [f"Warning: {text}" for text in dict.fromkeys((*verdict.warnings, *recorded_warnings))]
    return Summary(
        answer=str(verdict.outcome).capitalize(),
        tone=TONES[verdict.outcome],
        reason=verdict.reason,
        facts=[
            *facts,
            *_memory_fact(findings, findings.cut_geometry),
            *_engine_fact(findings),
            *_next_step(findings, verdict),
        ],
        notes=notes,
    )


def _next_step(findings: Findings, verdict: Verdict) -> Iterator[Fact]:
    """What to type where training may bring the loss back."""
    if verdict.outcome is Outcome.RECOVER:
        line = "recover it, then evaluate the result as this one was"
        yield Fact("Next", [line], [recover_command(findings)])


def _sweep_summary(findings: Findings, advice: Recommendation) -> Summary:
    cut = advice.chosen or advice.closest
    if cut is None:
        return Summary("No shape recommended", TONES[Outcome.UNKNOWN], advice.reason, [])
    facts = [
        Fact(
            "Quality", [f"{metric_label(x)}: {x.sentence}" for x in cut.losses[:MAX_QUALITY_LINES]]
        )
    ]
    facts += _memory_fact(findings, _resized_geometry(findings, cut))
    command = trim_command(findings, cut.point.keep, cut.point.keep_values)
    if advice.chosen:
        facts.append(
            Fact("Next", ["cut, check and measure it, with a random cut for comparison"], [command])
        )
        return Summary(f"Take {cut.shape}", TONES[Outcome.SHIP], advice.reason, facts)
    recover = f"{command} --recover {command_arguments(findings).tokens}"
    facts.append(Fact("Next", ["recover the nearest, or sweep larger shapes"], [recover]))
    return Summary("No shape recommended", TONES[Outcome.STOP], advice.reason, facts)


def _resized_geometry(findings: Findings, cut: JudgedCut) -> Geometry | None:
    """The model's state in that shape; an untrusted sweep may say anything."""
    original, shape = findings.original_geometry, (cut.point.keep, cut.point.keep_values)
    if original is None or not all(type(count) is int and count > 0 for count in shape):
        return None
    return original.resized(*shape)


def _memory_fact(findings: Findings, cut_geometry: Geometry | None) -> Iterator[Fact]:
    """Bytes and sequences: the cut, and what is free without it."""
    original = findings.original_geometry
    if original is None or cut_geometry is None:
        return
    full_row, bfloat16_row, cut_row, both_row = alternatives(
        original, cut_geometry, findings.original
    )
    lines = [
        f"{bytes_text(full_row.state_bytes)} → {bytes_text(cut_row.state_bytes)} of state per sequence "
        f"({relative_change_text(full_row.state_bytes, cut_row.state_bytes)}); a bfloat16 state without a cut "
        f"{bytes_text(bfloat16_row.state_bytes)}, both {bytes_text(both_row.state_bytes)}"
    ]
    if full_row.sequences is not None:
        lines.append(
            f"{full_row.sequences:,} → {cut_row.sequences:,} sequences of {CONTEXT:,} tokens in "
            f"{MEMORY_GIB:g} GiB of cache; bfloat16 alone {bfloat16_row.sequences:,}, both "
            f"{both_row.sequences:,}"
        )
    yield Fact("Memory", lines)


def _engine_fact(findings: Findings) -> Iterator[Fact]:
    """Which engines serve the shape, and the command of the one asked for, or of the first."""
    model, shape = findings.cut or findings.original, findings.cut_geometry
    if model is None or shape is None:
        return
    current_rows = [
        x
        for x in compatibility_of_geometry(str(model.config.get("model_type")), shape)
        if x.current
    ]
    commands = serving_commands(findings)
    serving = [
        name for name in commands if any(x.engine == name and x.serves for x in current_rows)
    ]
    refusing = sorted(
        {line.engine for line in current_rows if line.verdict in ("refused", "wrong")}
    )
    refusing = [name for name in refusing if name not in serving]
    lines = [f"served by {', '.join(serving)}" if serving else "no engine is known to serve it"]
    if refusing:
        lines.append(f"refused by {', '.join(refusing)}")
    command_lines: list[str] = []
    if serving and findings.cut:
        command_lines = command_below_comment(serving[0], commands[serving[0]])
        if len(serving) > 1:
            lines.append('"Where it runs" has the commands of the others')
    yield Fact("Engines", lines, command_lines)
