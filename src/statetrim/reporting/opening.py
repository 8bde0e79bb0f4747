"""Findings -> the first screen: whether to ship, why, and the two or three facts that decide it."""

from collections.abc import Iterator
from pathlib import Path

from ..artifacts.recommendation import JudgedCut, Recommendation, recommend
from ..artifacts.verdict import Outcome, Verdict, metric_label
from ..geometry import Geometry
from ..maths.formatting import bytes_text, relative_change_text
from ..serving.alternatives import CONTEXT, MEMORY_GIB, alternatives
from ..serving.deployment import ship_verdict
from ..serving.engine_names import commented_command
from ..serving.engines import verdicts_on
from .document import Fact, Opening
from .findings import Findings
from .names import names, recover_command, serving_commands, trim_command
from .records import mapping, strings

TONES = {
    Outcome.SHIP: "good",
    Outcome.RECOVER: "fair",
    Outcome.STOP: "bad",
    Outcome.UNKNOWN: "unknown",
}
MOST_FACTS = 3  # lines of quality on the first screen


def opening(found: Findings) -> Opening:
    """Of the cut where there is one, else of the sweep."""
    if found.sweep is not None and found.after is None and found.scores is None:
        return _of_sweep(found, recommend(found.sweep))
    return _of_cut(found, ship_verdict_of(found))


def ship_verdict_of(found: Findings) -> Verdict:
    """The verdict on the report's checkpoint; scores that do not belong to it are doubted."""
    return ship_verdict(
        found.scores,
        found.scored_name,
        found.after,
        doubts=list(found.mismatches),
        faults=found.engine_faults,
    )


def title(found: Findings) -> str:
    before, after = found.geometry_before, found.geometry_after
    model = found.before or found.after
    name = model.name if model else ""
    if not name:
        name = found.sweep.model if found.sweep else Path(next(iter(found.sources.values()))).stem
    if before and after and before != after:
        return f"{name}: state {before.describe_against(after)} → {after.describe_against(before)}"
    return f"{name}: what a smaller state costs"


def _of_cut(found: Findings, judged: Verdict) -> Opening:
    facts = [Fact("Quality", judged.facts[:MOST_FACTS])] if judged.facts else []
    recorded = strings(mapping(found.trim).get("warnings"))
    notes = [f"These artifacts do not belong together: {text}" for text in found.mismatches]
    notes += [f"Warning: {text}" for text in dict.fromkeys((*judged.warnings, *recorded))]
    return Opening(
        answer=str(judged.outcome).capitalize(),
        tone=TONES[judged.outcome],
        reason=judged.reason,
        facts=[
            *facts,
            *_memory(found, found.geometry_after),
            *_engines(found),
            *_next(found, judged),
        ],
        notes=notes,
    )


def _next(found: Findings, judged: Verdict) -> Iterator[Fact]:
    """What to type where training may bring the loss back."""
    if judged.outcome is Outcome.RECOVER:
        line = "recover it, then evaluate the result as this one was"
        yield Fact("Next", [line], [recover_command(found)])


def _of_sweep(found: Findings, advice: Recommendation) -> Opening:
    cut = advice.chosen or advice.closest
    if cut is None:
        return Opening("No shape recommended", TONES[Outcome.UNKNOWN], advice.reason, [])
    facts = [Fact("Quality", [f"{metric_label(x)}: {x.sentence}" for x in cut.losses[:MOST_FACTS]])]
    facts += _memory(found, _resized(found, cut))
    command = trim_command(found, cut.point.keep, cut.point.keep_values)
    if advice.chosen:
        facts.append(
            Fact("Next", ["cut, check and measure it, with a random cut for comparison"], [command])
        )
        return Opening(f"Take {cut.shape}", TONES[Outcome.SHIP], advice.reason, facts)
    recover = f"{command} --recover {names(found).tokens}"
    facts.append(Fact("Next", ["recover the nearest, or sweep larger shapes"], [recover]))
    return Opening("No shape recommended", TONES[Outcome.STOP], advice.reason, facts)


def _resized(found: Findings, cut: JudgedCut) -> Geometry | None:
    """The model's state in that shape; an untrusted sweep may say anything."""
    before, shape = found.geometry_before, (cut.point.keep, cut.point.keep_values)
    if before is None or not all(type(count) is int and count > 0 for count in shape):
        return None
    return before.resized(*shape)


def _memory(found: Findings, after: Geometry | None) -> Iterator[Fact]:
    """Bytes and sequences: the cut, and what is free without it."""
    before = found.geometry_before
    if before is None or after is None:
        return
    whole, half, cut, both = alternatives(before, after, found.before)
    lines = [
        f"{bytes_text(whole.state_bytes)} → {bytes_text(cut.state_bytes)} of state per sequence "
        f"({relative_change_text(whole.state_bytes, cut.state_bytes)}); a bfloat16 state without a cut "
        f"{bytes_text(half.state_bytes)}, both {bytes_text(both.state_bytes)}"
    ]
    if whole.sequences is not None:
        lines.append(
            f"{whole.sequences:,} → {cut.sequences:,} sequences of {CONTEXT:,} tokens in "
            f"{MEMORY_GIB:g} GiB of cache; bfloat16 alone {half.sequences:,}, both "
            f"{both.sequences:,}"
        )
    yield Fact("Memory", lines)


def _engines(found: Findings) -> Iterator[Fact]:
    """Which engines serve the shape, and the command of the one asked for, or of the first."""
    model, shape = found.after or found.before, found.geometry_after
    if model is None or shape is None:
        return
    known = [x for x in verdicts_on(str(model.config.get("model_type")), shape) if x.current]
    commands = serving_commands(found)
    serving = [name for name in commands if any(x.engine == name and x.serves for x in known)]
    refusing = sorted({line.engine for line in known if line.verdict in ("refused", "wrong")})
    refusing = [name for name in refusing if name not in serving]
    lines = [f"served by {', '.join(serving)}" if serving else "no engine is known to serve it"]
    if refusing:
        lines.append(f"refused by {', '.join(refusing)}")
    shown: list[str] = []
    if serving and found.after:
        shown = commented_command(serving[0], commands[serving[0]])
        if len(serving) > 1:
            lines.append('"Where it runs" has the commands of the others')
    yield Fact("Engines", lines, shown)
