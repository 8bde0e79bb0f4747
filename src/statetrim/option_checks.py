"""Checks of single options; each receives the option's name and raises StatetrimError.

None of them imports torch, so that the command line answers a mistake at once.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .errors import StatetrimError
from .maths.formatting import choices_text
from .maths.units import parse_token_count
from .options import Check


def token_count(name: str, value: int | str) -> None:
    """A number of tokens: 4096 or "64k"."""
    parse_token_count(value)


def at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise StatetrimError(f"{name} cannot be {value}; take 1 or more")


def seed(name: str, value: int) -> None:
    """A seed that torch, numpy and transformers accept."""
    if not 0 <= value < 2**32:
        raise StatetrimError(f"{name} must be between 0 and {2**32 - 1}, not {str(value)[:40]}")


def fraction(name: str, value: float) -> None:
    """A fraction in [0, 1)."""
    if not 0 <= value < 1:
        raise StatetrimError(f"{name} must be a fraction between 0 and 1, not {value:g}")


def existing_file(name: str, value: Any) -> None:
    if isinstance(value, str | Path) and not Path(value).exists():
        raise StatetrimError(f"{value} is missing")


def methods(name: str, value: Any) -> None:
    """Selection methods: functions, names, or Python files that define one."""
    from .methods import check_method, listed_methods

    for method in listed_methods(value):
        if isinstance(method, str):
            check_method(method)


def tasks(name: str, value: Iterable[str]) -> None:
    from .tasks import check_names

    check_names(value)


def text_source(name: str, value: Any) -> None:
    """A text file, a folder of them, or a hub dataset."""
    from .storage.text import check_text_source

    if isinstance(value, str | Path):
        check_text_source(value)


def one_of(*choices: str) -> Check:
    """A check that the value is one of `choices`."""

    def check(name: str, value: Any) -> None:
        if isinstance(value, str) and value not in choices:
            raise StatetrimError(f"{name} is {choices_text(choices)}, not {value[:40]!r}")

    return check
