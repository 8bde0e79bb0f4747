"""How figures read in a table, a report or an error message."""

from collections.abc import Iterable, Sequence
from math import isfinite
from typing import TypeVar

Item = TypeVar("Item")


def bytes_text(nbytes: float) -> str:
    """Bytes, in binary units."""
    return f"{nbytes / 2**20:,.1f} MiB" if nbytes >= 2**20 else f"{nbytes / 2**10:,.1f} KiB"


def relative_change_text(before: float, after: float) -> str:
    """Relative change with its sign; empty where there was nothing before."""
    return f"{100 * (after - before) / before:+.1f}%" if before else ""


def percent_text(share: float) -> str:
    return f"{100 * share:.4g}%" if isfinite(share) else "none"


def quantity_text(value: float) -> str:
    """Three digits; whole numbers from a hundred on."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def score_text(value: float, unit: str) -> str:
    """A score in the unit its task measures in: perplexity, share or nats."""
    if unit == "perplexity":
        return f"{value:,.2f}" if value < 1e7 else f"{value:.2e}"
    return f"{100 * value:.1f}%" if unit == "share" else f"{value:.4f}"


def shorten(text: object, max_length: int = 60) -> str:
    """One line of at most `most` characters, whatever the text: names may be anybody's."""
    line = "".join(c if c.isprintable() else " " for c in str(text)[: max_length + 1])
    return line if len(line) <= max_length else line[: max_length - 1] + "…"


def list_text(names: Iterable[object], max_items: int = 4) -> str:
    """`a, b, c, d and 12 more`."""
    items = list(names)
    text = ", ".join(shorten(name, 40) for name in items[:max_items])
    return f"{text} and {len(items) - max_items} more" if len(items) > max_items else text


def duration_text(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"


def evenly_spaced(items: Sequence[Item], max_items: int) -> list[Item]:
    """At most `most` of the items at even distances, first and last included."""
    if len(items) <= max_items:
        return list(items)
    return [items[round(i * (len(items) - 1) / (max_items - 1))] for i in range(max_items)]
