"""Numbers, names and tables as text for reports and error messages."""

from collections.abc import Collection, Iterable, Sequence
from math import isfinite
from typing import NamedTuple, TypeVar

Item = TypeVar("Item")


class Table(NamedTuple):
    """Rows of text for people; cells may come from untrusted files."""

    title: str
    header: Sequence[str]  # empty: each row is a name and a value
    rows: Sequence[Sequence[str]]


def bytes_text(nbytes: float) -> str:
    """A number of bytes in KiB or MiB."""
    return f"{nbytes / 2**20:,.1f} MiB" if nbytes >= 2**20 else f"{nbytes / 2**10:,.1f} KiB"


def relative_change_text(before: float, after: float) -> str:
    """The signed change in percent of `before`; empty if there is none, or if `before` is 0."""
    if not before or before == after:
        return ""
    percent = 100 * (after - before) / before
    return f"{percent:+.1f}%" if abs(percent) >= 0.05 else f"{percent:+.1g}%"


def change_row(name: str, before: float, after: float, unit: str = "bytes") -> tuple[str, ...]:
    """A name, a number of bytes or of something else before and after, and its change."""
    texts = [bytes_text(x) if unit == "bytes" else f"{x:,}" for x in (before, after)]
    return name, *texts, relative_change_text(before, after)


def percent_text(share: float) -> str:
    """A fraction in percent; "none" for nan and infinity."""
    return f"{100 * share:.4g}%" if isfinite(share) else "none"


def quantity_text(value: float) -> str:
    """Three significant digits below 100, a whole number from there on."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def count_of(number: int, noun: str) -> str:
    """Such as "1 head" or "12 heads"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def fit_text(sequences: float) -> str:
    """A number of sequences that fit: vLLM reports a fraction, other engines whole ones."""
    return f"{sequences:,.1f}" if sequences % 1 else f"{sequences:,.0f}"


def shorten(text: object, max_length: int = 60) -> str:
    """One printable line of at most `max_length` characters; the text may be untrusted."""
    line = "".join(c if c.isprintable() else " " for c in str(text)[: max_length + 1])
    return line if len(line) <= max_length else line[: max_length - 1] + "…"


def list_text(names: Iterable[object], max_items: int = 4) -> str:
    """The first `max_items` names and the number of others: `a, b, c, d and 12 more`."""
    items = list(names)
    text = ", ".join(shorten(name, 40) for name in items[:max_items])
    return f"{text} and {len(items) - max_items} more" if len(items) > max_items else text


def lowest_to_highest(numbers: Collection[int]) -> str:
    """Such as "32" if all are equal, else "16 to 32"."""
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"


def choices_text(choices: Iterable[object]) -> str:
    """Such as "mlx, vllm or llamacpp"."""
    *most, last = map(str, choices)
    return f"{', '.join(most)} or {last}" if most else last


def evenly_spaced(items: Sequence[Item], max_items: int) -> list[Item]:
    """At most `max_items` of the items at even distances, with the first and, of two, the last."""
    if len(items) <= max_items:
        return list(items)
    distance = (len(items) - 1) / max(1, max_items - 1)
    return [items[round(i * distance)] for i in range(max_items)]
