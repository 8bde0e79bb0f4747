"""Callbacks that check option values while typer parses, before the slow import of torch.

Each returns the value unchanged or raises StatetrimError. What depends on a model is checked later.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from ..errors import StatetrimError


def token_counts(value: str | None) -> str | None:
    """Numbers of tokens, separated by commas."""
    from ..maths.units import parse_token_count

    for text in (value or "0").split(","):
        parse_token_count(text)
    return value


def channel_amount(value: str | None) -> str | None:
    """A number of channels, or a fraction of a head's channels."""
    from ..maths.units import parse_amount

    if value is not None:
        parse_amount(value)
    return value


def at_least_one(parameter: typer.CallbackParam, value: int | None) -> int | None:
    if value is not None and value < 1:
        raise StatetrimError(f"{parameter.opts[-1]} cannot be {value}; take 1 or more")
    return value


def seed(value: int) -> int:
    """A random seed that torch, numpy and transformers all accept."""
    if not 0 <= value < 2**32:
        raise StatetrimError(f"--seed must be between 0 and {2**32 - 1}, not {str(value)[:40]}")
    return value


def fraction(parameter: typer.CallbackParam, value: float | None) -> float | None:
    """A fraction in [0, 1)."""
    if value is not None and not 0 <= value < 1:
        raise StatetrimError(
            f"{parameter.opts[-1]} must be a fraction between 0 and 1, not {value:g}"
        )
    return value


def method(value: str) -> str:
    from ..methods import check_method

    check_method(value)
    return value


def methods(value: str | None) -> str | None:
    for name in (value or "").split(","):
        if name.strip():
            method(name.strip())
    return value


def engine(value: str | None) -> str | None:
    from ..serving.engine_names import engine_name

    if value is not None:
        engine_name(value)
    return value


def tasks(value: str) -> str:
    from ..tasks import find_tasks

    find_tasks([name.strip() for name in value.split(",")])
    return value


def text_source(value: str | None) -> str | None:
    """A text file, folder or hub dataset."""
    from ..storage.text import check_text_source

    if value is not None:
        check_text_source(value)
    return value


def rules(value: list[str] | None) -> list[str] | None:
    from ..tasks.rule import check_rule

    for rule in value or []:
        check_rule(rule)
    return value


def must_exist(value: Any) -> Any:
    """A path, a list of paths, or None; every path exists."""
    for path in value if isinstance(value, list) else [value]:
        if path is not None and not Path(path).exists():
            raise StatetrimError(f"{path} is missing")
    return value


def artifact_files(value: list[Path]) -> list[Path]:
    """Checkpoints and JSON files, which must exist; other names may be models on the hub."""
    must_exist([path for path in value if path.suffix == ".json"])
    return value


def one_of(*names: str) -> Callable[[typer.CallbackParam, str | None], str | None]:
    """Make a callback that accepts only `names`."""

    def check(parameter: typer.CallbackParam, value: str | None) -> str | None:
        if value is not None and value not in names:
            choices = f"{', '.join(names[:-1])} or {names[-1]}" if names[1:] else repr(names[0])
            raise StatetrimError(f"{parameter.opts[-1]} is {choices}, not {value[:40]!r}")
        return value

    return check


def executables(values: list[Path] | None) -> list[Path] | None:
    """Paths or names of executables."""
    for value in values or []:
        if shutil.which(value) is None:
            raise StatetrimError(f"{value} cannot be started: it is not a program")
    return values
