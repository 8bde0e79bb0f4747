"""Units, parsing of token counts, and type checks for untrusted JSON values."""

from typing import Any

from ..errors import StatetrimError

MIB, GIB = 2**20, 2**30
MAX_NUMBER = 1e300  # of untrusted files; sums and plots of larger ones overflow
_SUFFIXES = {"k": 2**10, "m": 2**20, "g": 2**30}


def parse_token_count(tokens: int | str) -> int:
    """Parse 4096, "4096", "256k", "64m" or "1g"; k is 1024. Raises StatetrimError otherwise."""
    text = str(tokens)
    scale = _SUFFIXES.get(text[-1:].lower())
    digits = text if scale is None else text[:-1]
    if not digits.isdecimal() or len(digits) > 12:
        raise StatetrimError(f"{text[:40]!r} is not a number of tokens; write 4096 or 256k")
    return int(digits) * (scale or 1)


def is_integer_list(value: Any) -> bool:
    """Whether `value` is a list of int; bool and float do not count."""
    return isinstance(value, list) and all(type(item) is int for item in value)


def is_number(value: Any) -> bool:
    """Whether `value` is an int or float below MAX_NUMBER in magnitude."""
    return type(value) in (int, float) and abs(value) < MAX_NUMBER
