"""Syntax of the rules on which scripts fail: 'recall drop > 2%', or 'not ship'."""

import re
from dataclasses import dataclass

from ..errors import StatetrimError
from . import TASKS

NOT_SHIP = "not ship"
_RULE = re.compile(r"\s*(\w+)\s+(drop|rise)\s*>\s*(\d+(?:\.\d+)?)\s*(%|points?)\s*")


@dataclass(frozen=True)
class Rule:
    """A parsed rule: task or group `name` may not drop (or rise) by more than `limit`, which is in
    percent of the original if `relative`, else in percentage points."""

    text: str
    name: str
    direction: str
    limit: float
    relative: bool


def check_rule(rule: str) -> None:
    """Refuse a rule that cannot be parsed, before a long run starts."""
    if rule.strip() != NOT_SHIP:
        parse_rule(rule)


def parse_rule(rule: str) -> Rule:
    """Parse a rule such as 'recall drop > 2%'; refuses other text, also 'not ship', and unknown
    names."""
    match = _RULE.fullmatch(rule)
    groups = {task.group for task in TASKS.values()}
    if match is None or match[1] not in {*TASKS, *groups}:
        raise StatetrimError(
            f"{rule[:80]!r} is not a rule; write one such as 'recall drop > 2%' or "
            f"'wikitext rise > 5%', with the name of a task or one of {', '.join(sorted(groups))}, "
            f"and % of the original or percentage points; or '{NOT_SHIP}'"
        )
    return Rule(rule.strip(), match[1], match[2], float(match[3]), match[4] == "%")
