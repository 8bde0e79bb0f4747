"""The shell commands of a report, with paths as the user gave them, so that they can be pasted."""

import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from ..artifacts.card.markdown import one_line
from ..artifacts.steps import TrimRecord, data_sources
from ..judging.verdict import Verdict
from ..maths.units import is_number
from ..serving.deployment import serve_commands
from ..serving.engine_names import requested_engine
from ..serving.next_steps import NextStep, RunFacts, next_steps
from .document import Missing
from .findings import Findings


@dataclass(frozen=True)
class CommandArguments:
    """Shell-quoted paths; MODEL, SMALL or TEXT stand for what the report was not given."""

    model: str
    cut: str
    text: str
    tokens: int  # of calibration, generated ones included


def command_arguments(findings: Findings) -> CommandArguments:
    """Paths of original, cut and first calibration text; MODEL, SMALL, or TEXT with 2**14 tokens,
    for those that no artifact names."""
    text, tokens = next(_calibration_texts(findings), ("TEXT", 2**14))
    return CommandArguments(
        model=shell_quoted(findings.original.path) if findings.original else "MODEL",
        cut=shell_quoted(findings.cut.path) if findings.cut else "SMALL",
        text=text,
        tokens=tokens,
    )


def shell_quoted(value: Any) -> str:
    """`value` on one line, quoted for a shell."""
    return shlex.quote(one_line(str(value)))


def _calibration_texts(findings: Findings) -> Iterator[tuple[str, int]]:
    """Shell-quoted calibration texts and their numbers of tokens, as trim was asked for them, or
    from the lineage of plan and decision; what has no valid number is left out."""
    if findings.trim is not None and findings.trim.text and findings.trim.tokens > 0:
        yield shell_quoted(findings.trim.text), findings.trim.tokens
    if findings.plan is not None:
        sources = data_sources(findings.plan.lineage.get("statistics"))
        for source in sources:
            if source.text is not None:
                yield shell_quoted(source.text), sum(other.tokens for other in sources)
    decision = findings.decision.lineage if findings.decision else {}
    text, tokens = decision.get("text"), decision.get("tokens")
    if isinstance(text, str) and is_number(tokens) and tokens:
        yield shell_quoted(text), int(tokens)


def missing(findings: Findings, text: str, command: str) -> Missing:
    """What a section lacks, and the command that measures it, in which {model}, {cut}, {text} and
    {tokens} are filled in."""
    return Missing(text, [command.format(**asdict(command_arguments(findings)))])


def trim_command(findings: Findings, to: str, out: str = "OUT") -> str:
    """The command that cuts the original to `to`."""
    arguments = command_arguments(findings)
    return (
        f"statetrim trim {arguments.model} --to {shell_quoted(to)} --text {arguments.text} "
        f"--tokens {arguments.tokens} -o {out}"
    )


def next_commands(findings: Findings, verdict: Verdict) -> list[NextStep]:
    """What to do after the verdict on the report's cut; empty without original, cut or text."""
    original, cut = findings.original, findings.cut
    text = findings.trim.text if findings.trim else None
    if original is None or cut is None or text is None:
        return []
    trim, recipe = findings.trim or TrimRecord(), (findings.trim and findings.trim.recipe) or {}
    limit, engine = recipe.get("limit"), recipe.get("for_")
    facts = RunFacts(
        model=one_line(str(original.path)),
        cut=one_line(str(cut.path)),
        text=one_line(text),
        tokens=one_line(str(recipe.get("tokens", trim.tokens))),
        skip=trim.measured_from,
        samples=limit if type(limit) is int else 128,
        engine=str(engine) if requested_engine(trim) else None,
        tried_by_layer=recipe.get("by_layer") is True,
    )
    return next_steps(verdict, original, cut, facts)


def serving_commands(findings: Findings) -> dict[str, str]:
    """Engine -> command that serves the report's checkpoint; the engine of `trim --for` first.

    Empty without a checkpoint. A cut that is only planned has the path SMALL.
    """
    model, geometry = findings.checkpoint, findings.geometry
    if model is None or geometry is None:
        return {}
    is_planned = findings.cut is None and findings.plan is not None  # the cut is not made yet
    path = "SMALL" if is_planned else one_line(str(model.path))
    return serve_commands(model, geometry, path, first_engine=requested_engine(findings.trim))
