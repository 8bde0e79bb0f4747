"""Whether a value has the type that an option declares, for values that no type checker sees: those
of recipes and of Python callers."""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from math import isfinite
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from .errors import StatetrimError


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    try:
        return is_number and isfinite(value)
    except OverflowError:  # a whole number that no float holds
        return False


_SCALARS: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    bool: ("true or false", lambda value: isinstance(value, bool)),
    int: ("a whole number", _is_whole),
    float: ("a number", _is_finite),
    Fraction: ("a number", _is_finite),
    str: ("a text", lambda value: isinstance(value, str)),
    Path: ("a path", lambda value: isinstance(value, PathLike)),
}
"""Type -> what it is for people, and whether a value is one."""


def check_type(name: str, hint: Any, value: Any) -> None:
    """Raise StatetrimError, with the option's `name`, for a value that does not have the type
    `hint`. Types of other kinds, and those that only type checkers can resolve, accept every
    value."""
    if kind := _expected_kind(hint, value):
        raise StatetrimError(f"{name} must be {kind}, not {repr(value)[:60]}")


def _expected_kind(hint: Any, value: Any) -> str | None:
    """What the value should be, such as "a whole number or a text"; None if it is."""
    kinds = []
    for each in alternatives(hint):
        kind = _mismatch(each, value)
        if kind is None:
            return None
        kinds.append(kind)
    return " or ".join(dict.fromkeys(kind for kind in kinds if kind))


def alternatives(hint: Any) -> tuple[Any, ...]:
    """The members of a union; any other type alone."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _mismatch(hint: Any, value: Any) -> str | None:
    """What the value should be for a type that is no union; None if the type accepts it."""
    if hint in _SCALARS:
        kind, fits = _SCALARS[hint]
        return None if fits(value) else kind
    if hint is NoneType:
        return None if value is None else ""
    origin = get_origin(hint)
    if origin is Literal:
        return None if isinstance(value, str) else "a text"
    if origin is Mapping:
        return None if isinstance(value, Mapping) else "a mapping"
    if origin not in (Sequence, tuple):
        return None
    if not isinstance(value, Sequence) or isinstance(value, str):
        return "a list"
    for item in value:
        if item_kind := _expected_kind(get_args(hint)[0], item):
            return f"a list, each {item_kind}"
    return None
