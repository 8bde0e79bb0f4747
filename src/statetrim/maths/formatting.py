"""How figures read in a table, a report or an error message."""

from collections.abc import Iterable, Sequence
from math import isfinite
from typing import TypeVar

Item = TypeVar("Item")


def size(nbytes: float) -> str:
    """Bytes, in binary units."""
    return f"{nbytes / 2**20:,.1f} MiB" if nbytes >= 2**20 else f"{nbytes / 2**10:,.1f} KiB"


def change(before: float, after: float) -> str:
    """Relative change with its sign; empty where there was nothing before."""
    return f"{100 * (after - before) / before:+.1f}%" if before else ""


def percent(share: float) -> str:
    return f"{100 * share:.4g}%" if isfinite(share) else "none"


def quantity(value: float) -> str:
    """Three digits; whole numbers from a hundred on."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def score_text(value: float, unit: str) -> str:
    """A score in the unit its task measures in: perplexity, share or nats."""
    if unit == "perplexity":
        return f"{value:,.2f}" if value < 1e7 else f"{value:.2e}"
    return f"{100 * value:.1f}%" if unit == "share" else f"{value:.4f}"


def short(text: object, most: int = 60) -> str:
    """One line of at most `most` characters, whatever the text: names may be anybody's."""
    line = "".join(c if c.isprintable() else " " for c in str(text)[: most + 1])
    return line if len(line) <= most else line[: most - 1] + "…"


def listed(names: Iterable[object], most: int = 4) -> str:
    """`a, b, c, d and 12 more`."""
    every = list(names)
    text = ", ".join(short(name, 40) for name in every[:most])
    return f"{text} and {len(every) - most} more" if len(every) > most else text


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"


def evenly(items: Sequence[Item], most: int) -> list[Item]:
    """At most `most` of the items at even distances, first and last included."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]
