"""Units, and what counts as a number in a stranger's file."""

from typing import Any

MIB, GIB = 2**20, 2**30


def integers(value: Any) -> bool:
    """Whether `value` is a list of whole numbers; True and 1.0 are not."""
    return isinstance(value, list) and all(type(item) is int for item in value)
