"""Units, and what counts as a number in an untrusted file."""

from typing import Any

MIB, GIB = 2**20, 2**30

Amount = int | float | str
"""What to keep of a head's channels: a count (64), or the fraction kept (0.5)."""


def integers(value: Any) -> bool:
    """Whether `value` is a list of whole numbers; True and 1.0 are not."""
    return isinstance(value, list) and all(type(item) is int for item in value)


def is_number(value: Any) -> bool:
    """Whether `value` is a finite number that can be drawn; True is not."""
    return type(value) in (int, float) and abs(value) < 1e300
