"""Typed values out of untrusted JSON records; what has another type counts as empty."""

from collections.abc import Mapping
from typing import Any


def as_mapping(value: Any) -> Mapping[str, Any]:
    """`value` if it is a dict, else an empty one."""
    return value if isinstance(value, dict) else {}


def as_dicts(value: Any) -> list[dict[str, Any]]:
    """The dicts in a list; empty if `value` is no list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def as_strings(value: Any) -> list[str]:
    """The strings in a list; empty if `value` is no list."""
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def truncated_text(value: Any) -> str:
    """The first 16 characters, as of a digest; empty for None."""
    return "" if value is None else str(value)[:16]
