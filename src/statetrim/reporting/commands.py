"""The shell commands of a report, with paths as the user gave them, so that they can be pasted."""

import shlex
from dataclasses import asdict, dataclass
from typing import Any

from ..artifacts.card.markdown import one_line
from ..artifacts.steps import data_sources
from ..serving.deployment import serve_commands
from .document import Missing
from .findings import Findings


@dataclass(frozen=True)
class CommandArguments:
    """Shell-quoted paths; MODEL or TEXT stand for what the report was not given."""

    model: str
    cut: str
    text: str
    tokens: int  # of calibration, generated ones included


def command_arguments(findings: Findings) -> CommandArguments:
    """Paths of original, cut and calibration text, as trim was asked for it or the plan names it;
    MODEL, or TEXT with 2**14 tokens, for those that are not known."""
    text, tokens = "TEXT", 2**14
    sources = data_sources(findings.plan.lineage.get("statistics"))
    texts = [source.text for source in sources if source.text is not None]
    if findings.trim is not None and findings.trim.text and findings.trim.tokens > 0:
        text, tokens = shell_quoted(findings.trim.text), findings.trim.tokens
    elif texts:
        text, tokens = shell_quoted(texts[0]), sum(source.tokens for source in sources)
    model = shell_quoted(findings.original.path) if findings.original else "MODEL"
    return CommandArguments(model, shell_quoted(findings.cut.path), text, tokens)


def shell_quoted(value: Any) -> str:
    """`value` on one line, quoted for a shell."""
    return shlex.quote(one_line(str(value)))


def missing(findings: Findings, text: str, command: str) -> Missing:
    """What a section lacks, and the command that measures it, in which {model}, {cut}, {text} and
    {tokens} are filled in."""
    return Missing(text, [command.format(**asdict(command_arguments(findings)))])


def trim_command(findings: Findings, to: str, out: str) -> str:
    """The command that cuts the original to `to`."""
    arguments = command_arguments(findings)
    return (
        f"statetrim trim {arguments.model} --to {shell_quoted(to)} --text {arguments.text} "
        f"--tokens {arguments.tokens} -o {out}"
    )


def serving_commands(findings: Findings) -> dict[str, str]:
    """Engine -> command that serves the cut; the engine of `trim --for` first."""
    path = one_line(str(findings.cut.path))
    return serve_commands(findings.cut, findings.cut.geometry, path, first_engine=findings.engine)
