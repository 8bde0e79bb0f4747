"""Paths as they were given, so that the commands of a report can be typed as they stand."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..artifacts.card.markdown import one_line
from ..maths.units import is_number
from ..serving.deployment import serve_commands
from ..serving.engine_names import asked_engine
from .findings import Findings
from .records import dicts, mapping

FEWEST_TOKENS = 16 * 512  # one step of training


@dataclass(frozen=True)
class Names:
    """Quoted for a shell; a word in capitals where the report was not given the thing."""

    model: str
    small: str
    text: str
    tokens: int  # of the text that were read to calibrate

    @property
    def explained(self) -> str:
        """What the words in capitals stand for; empty where there are none."""
        words = {
            "MODEL": (self.model, "the original checkpoint"),
            "SMALL": (self.small, "the cut one"),
            "TEXT": (self.text, "a text of yours"),
        }
        return "; ".join(f"{word}: {what}" for word, (name, what) in words.items() if name == word)


def names(found: Findings) -> Names:
    text, tokens = next(_texts(found), ("TEXT", 2**14))
    return Names(
        model=quoted(found.before.path) if found.before else "MODEL",
        small=quoted(found.after.path) if found.after else "SMALL",
        text=text,
        tokens=tokens,
    )


def quoted(value: Any) -> str:
    """For a shell, on one line."""
    return shlex.quote(one_line(str(value)))


def _texts(found: Findings) -> Iterator[tuple[str, int]]:
    """What was calibrated on, by the plan or by the record of the run."""
    if found.plan is not None:
        for data in dicts(mapping(found.plan.lineage.get("statistics")).get("data")):
            count, length = data.get("count"), data.get("length")
            if type(count) is int and type(length) is int and 0 < count * length < 2**63:
                yield quoted(data.get("text")), count * length
    for record in (found.trim, mapping(found.sweep.lineage) if found.sweep else None):
        text, tokens = mapping(record).get("text"), mapping(record).get("tokens")
        if isinstance(text, str) and is_number(tokens) and tokens:
            yield quoted(text), int(tokens)


def trim_command(found: Findings, keep: int, keep_values: int) -> str:
    """What makes the cut that a sweep recommends."""
    words, whole = names(found), found.geometry_before
    axes = (
        ("--keep", keep, whole and whole.head_k_dim),
        ("--keep-values", keep_values, whole and whole.head_v_dim),
    )
    kept = " ".join(f"{flag} {quoted(count)}" for flag, count, most in axes if count != most)
    return f"statetrim trim {words.model} {kept} --text {words.text} --tokens {words.tokens} -o OUT"


def recover_command(found: Findings) -> str:
    """What trains the report's checkpoint after the cut."""
    words = names(found)
    return (
        f"statetrim recover {words.small} --teacher {words.model} --text {words.text} "
        f"--tokens {max(words.tokens, FEWEST_TOKENS)} --length 512 -o RECOVERED"
    )


def serving_commands(found: Findings) -> dict[str, str]:
    """Engine -> what serves the report's checkpoint; that of `trim --for` comes first."""
    model, shape = found.after or found.before, found.geometry_after or found.geometry_before
    if model is None or shape is None:
        return {}
    uncut = found.after is None and found.plan is None
    path = one_line(str(model.path)) if found.after or uncut else "SMALL"
    return serve_commands(model, shape, path, first=asked_engine(found.trim))
