"""Syntax of the rules on which scripts fail: 'recall drop > 2%', or 'not ship'."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import StatetrimError
from . import GROUPS

NOT_SHIP = "not ship"
_RULE = re.compile(r"\s*([\w.:+-]+)\s+(drop|rise)\s*>\s*(\d+(?:\.\d+)?)\s*(%|points?)\s*")


@dataclass(frozen=True)
class Rule:
    """A parsed rule: task or group `name` may not drop (or rise) by more than `limit`, which is in
    percent of the original if `relative`, else in percentage points."""

    text: str
    name: str
    direction: str
    limit: float
    relative: bool


def check_rule(rule: str, tasks: Sequence[str] | None = None) -> None:
    """Refuse a rule that cannot be parsed, or that is about none of `tasks`, before a long run
    starts."""
    if rule.strip() == NOT_SHIP:
        return
    name = parse_rule(rule).name
    if tasks is not None and name not in (*GROUPS, *tasks):
        raise StatetrimError(f"--fail-if is about {name!r}, which is not among --tasks")


def parse_rule(rule: str) -> Rule:
    """Parse a rule such as 'recall drop > 2%'; refuses other text, also 'not ship'."""
    match = _RULE.fullmatch(rule)
    if match is None:
        raise StatetrimError(
            f"{rule[:80]!r} is not a rule; write one such as 'recall drop > 2%' or "
            f"'text rise > 5%', with the name of a task or one of {', '.join(GROUPS)}, and % of "
            f"the original or percentage points; or '{NOT_SHIP}'"
        )
    return Rule(rule.strip(), match[1], match[2], float(match[3]), match[4] == "%")
