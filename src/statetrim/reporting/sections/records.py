"""Blocks that sections share, and how to take values out of an untrusted record."""

from collections.abc import Iterator, Mapping
from typing import Any

from ...maths.formatting import evenly
from ..charts import Point
from ..document import Block, Command, Text

MOST_CURVE_POINTS = 300


def missing(what: str, *commands: str) -> Iterator[Block]:
    yield Text(what, "missing")
    yield Command(commands)


def thinned(points: list[Point]) -> list[Point]:
    return evenly(points, MOST_CURVE_POINTS)


def mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def brief(value: Any) -> str:
    return "" if value is None else str(value)[:16]


def strings(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
