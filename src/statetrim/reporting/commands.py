"""Paths as they were given, so that the commands of a report can be typed as they stand."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..artifacts.card.markdown import one_line
from ..maths.units import is_number
from ..serving.deployment import serve_commands
from ..serving.engine_names import requested_engine
from .findings import Findings
from .records import as_dicts, as_mapping

MIN_RECOVERY_TOKENS = 16 * 512  # one step of training


@dataclass(frozen=True)
class CommandArguments:
    """Quoted for a shell; a word in capitals where the report was not given the thing."""

    model: str
    cut: str
    text: str
    tokens: int  # of the text that were read to calibrate

    @property
    def explained(self) -> str:
        """What the words in capitals stand for; empty where there are none."""
        words = {
            "MODEL": (self.model, "the original checkpoint"),
            "SMALL": (self.cut, "the cut one"),
            "TEXT": (self.text, "a text of yours"),
        }
        return "; ".join(f"{word}: {what}" for word, (name, what) in words.items() if name == word)


def command_arguments(findings: Findings) -> CommandArguments:
    text, tokens = next(_calibration_texts(findings), ("TEXT", 2**14))
    return CommandArguments(
        model=shell_quoted(findings.original.path) if findings.original else "MODEL",
        cut=shell_quoted(findings.cut.path) if findings.cut else "SMALL",
        text=text,
        tokens=tokens,
    )


def shell_quoted(value: Any) -> str:
    """For a shell, on one line."""
    return shlex.quote(one_line(str(value)))


def _calibration_texts(findings: Findings) -> Iterator[tuple[str, int]]:
    """What was calibrated on, by the plan or by the record of the run."""
    if findings.plan is not None:
        for data in as_dicts(as_mapping(findings.plan.lineage.get("statistics")).get("data")):
            count, length = data.get("count"), data.get("length")
            if type(count) is int and type(length) is int and 0 < count * length < 2**63:
                yield shell_quoted(data.get("text")), count * length
    for record in (findings.trim, as_mapping(findings.sweep.lineage) if findings.sweep else None):
        text, tokens = as_mapping(record).get("text"), as_mapping(record).get("tokens")
        if isinstance(text, str) and is_number(tokens) and tokens:
            yield shell_quoted(text), int(tokens)


def trim_command(findings: Findings, keep: int, keep_values: int) -> str:
    """What makes the cut that a sweep recommends."""
    arguments, geometry = command_arguments(findings), findings.original_geometry
    axes = (
        ("--keep", keep, geometry and geometry.head_k_dim),
        ("--keep-values", keep_values, geometry and geometry.head_v_dim),
    )
    options = " ".join(
        f"{flag} {shell_quoted(count)}" for flag, count, full_width in axes if count != full_width
    )
    return f"statetrim trim {arguments.model} {options} --text {arguments.text} --tokens {arguments.tokens} -o OUT"


def recover_command(findings: Findings) -> str:
    """What trains the report's checkpoint after the cut."""
    arguments = command_arguments(findings)
    return (
        f"statetrim recover {arguments.cut} --teacher {arguments.model} --text {arguments.text} "
        f"--tokens {max(arguments.tokens, MIN_RECOVERY_TOKENS)} --length 512 -o RECOVERED"
    )


def serving_commands(findings: Findings) -> dict[str, str]:
    """Engine -> what serves the report's checkpoint; that of `trim --for` comes first."""
    model, shape = (
        findings.cut or findings.original,
        findings.cut_geometry or findings.original_geometry,
    )
    if model is None or shape is None:
        return {}
    serves_original = findings.cut is None and findings.plan is None
    path = one_line(str(model.path)) if findings.cut or serves_original else "SMALL"
    return serve_commands(model, shape, path, first_engine=requested_engine(findings.trim))
