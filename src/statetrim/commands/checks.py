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
    """Return `value`; raises StatetrimError unless it is numbers of tokens such as 4096 or 64k,
    separated by commas. None passes."""
    from ..maths.units import parse_token_count

    for text in (value or "0").split(","):
        parse_token_count(text)
    return value


def channel_amount(value: str | None) -> str | None:
    """Return `value`; raises StatetrimError unless it is a count or a fraction; its range is
    checked later. None passes."""
    from ..maths.units import parse_amount

    if value is not None:
        parse_amount(value)
    return value


def at_least_one(parameter: typer.CallbackParam, value: int | None) -> int | None:
    """Return `value`; raises StatetrimError unless it is 1 or more, or None."""
    if value is not None and value < 1:
        raise StatetrimError(f"{parameter.opts[-1]} cannot be {value}; take 1 or more")
    return value


def seed(value: int) -> int:
    """Return `value`; raises StatetrimError unless it is a seed that torch, numpy and transformers
    accept: 0 to 2^32 - 1."""
    if not 0 <= value < 2**32:
        raise StatetrimError(f"--seed must be between 0 and {2**32 - 1}, not {str(value)[:40]}")
    return value


def fraction(parameter: typer.CallbackParam, value: float | None) -> float | None:
    """Return `value`; raises StatetrimError unless it is in [0, 1), or None."""
    if value is not None and not 0 <= value < 1:
        raise StatetrimError(
            f"{parameter.opts[-1]} must be a fraction between 0 and 1, not {value:g}"
        )
    return value


def method(value: str) -> str:
    """Return `value`; raises StatetrimError unless it is a known method or a Python file with
    one."""
    from ..methods import check_method

    check_method(value)
    return value


def methods(value: str | None) -> str | None:
    """Return `value`; raises StatetrimError unless all names in it, separated by commas, are
    methods. None passes."""
    for name in (value or "").split(","):
        if name.strip():
            method(name.strip())
    return value


def engine(value: str | None) -> str | None:
    """Return `value`; raises StatetrimError unless it is the name of an engine, or None."""
    from ..serving.engine_names import engine_name

    if value is not None:
        engine_name(value)
    return value


def tasks(value: str) -> str:
    """Return `value`; raises StatetrimError unless all names in it, separated by commas, are tasks
    or suites."""
    from ..tasks import find_tasks

    find_tasks([name.strip() for name in value.split(",")])
    return value


def text_source(value: str | None) -> str | None:
    """Return `value`; raises StatetrimError unless it is a text file, a folder or a hub dataset, or
    None."""
    from ..storage.text import check_text_source

    if value is not None:
        check_text_source(value)
    return value


def rules(value: list[str] | None) -> list[str] | None:
    """Return `value`; raises StatetrimError unless every rule in it can be parsed. None passes."""
    from ..tasks.rule import check_rule

    for rule in value or []:
        check_rule(rule)
    return value


def must_exist(value: Any) -> Any:
    """Return `value`, a path, a list of paths or None; raises StatetrimError if a path does not
    exist."""
    for path in value if isinstance(value, list) else [value]:
        if path is not None and not Path(path).exists():
            raise StatetrimError(f"{path} is missing")
    return value


def artifact_files(value: list[Path]) -> list[Path]:
    """Return `value`; raises StatetrimError if a .json file in it does not exist. Other names may
    be models on the hub."""
    must_exist([path for path in value if path.suffix == ".json"])
    return value


def one_of(*names: str) -> Callable[[typer.CallbackParam, str | None], str | None]:
    """Make a callback that returns its value, and raises StatetrimError unless it is one of `names`
    or None."""

    def check(parameter: typer.CallbackParam, value: str | None) -> str | None:
        if value is not None and value not in names:
            choices = f"{', '.join(names[:-1])} or {names[-1]}" if names[1:] else repr(names[0])
            raise StatetrimError(f"{parameter.opts[-1]} is {choices}, not {value[:40]!r}")
        return value

    return check


def executables(values: list[Path] | None) -> list[Path] | None:
    """Return `values`; raises StatetrimError if one is not the path or name of an executable. None
    passes."""
    for value in values or []:
        if shutil.which(value) is None:
            raise StatetrimError(f"{value} cannot be started: it is not a program")
    return values
