"""How figures read, and how to take values out of a stranger's record."""

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any

from ...artifacts.scores import Score
from ..charts import Point
from ..document import Block, Command, Text

MOST_CURVE_POINTS = 300


def missing(what: str, *commands: str) -> Iterator[Block]:
    yield Text(what, "missing")
    yield Command(commands)


def score_text(score: Score) -> str:
    if score.unit == "perplexity":
        return f"{score.value:,.2f}" if score.value < 1e7 else f"{score.value:.2e}"
    return f"{100 * score.value:.1f}%" if score.unit == "share" else f"{score.value:.4f}"


def size(nbytes: int) -> str:
    return f"{nbytes / 2**20:,.1f} MiB" if nbytes >= 2**20 else f"{nbytes / 2**10:,.1f} KiB"


def change(before: float, after: float) -> str:
    return f"{100 * (after - before) / before:+.1f}%" if before else ""


def number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e300


def percent(value: float) -> str:
    return f"{100 * value:.4g}%" if isfinite(value) else "none"


def spread(items: list[int], most: int) -> list[int]:
    """At most `most` of them, first and last included."""
    if len(items) <= most:
        return items
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def thinned(points: list[Point]) -> list[Point]:
    return [points[i] for i in spread(list(range(len(points))), MOST_CURVE_POINTS)]


def mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def brief(value: Any) -> str:
    return "" if value is None else str(value)[:16]


def strings(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
