"""Typed values out of untrusted JSON records; what has another type counts as empty."""

from collections.abc import Mapping
from typing import Any


def as_mapping(value: Any) -> Mapping[str, Any]:
    """`value` if it is a dict, else an empty one."""
    return value if isinstance(value, dict) else {}


def truncated_text(value: Any) -> str:
    """The first 16 characters, as of a digest; empty for None."""
    return "" if value is None else str(value)[:16]
