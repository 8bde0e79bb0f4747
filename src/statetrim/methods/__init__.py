"""Selection methods, one module each, except `contract`: its name is the method's name, its
function is `select`."""

import importlib
import importlib.util
import pkgutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ..defaults import DEFAULT_METHODS
from ..errors import StatetrimError

if TYPE_CHECKING:  # checking a name must not import torch
    from ..cut.shape import Axis
    from .contract import Method, Select

MethodLike = TypeVar("MethodLike", bound="str | Select")
METHODS = tuple(sorted({module.name for module in pkgutil.iter_modules(__path__)} - {"contract"}))
"""Modules that are methods; each is imported when the method is used."""


def method_names(axis: "Axis | None" = None) -> list[str]:
    """Names of all methods, or of those that select "key" or "value" channels, or "head"s."""
    return [name for name in METHODS if axis is None or axis in find_method(name).axes]


def check_method(method: str) -> None:
    """Raise StatetrimError if `method` is neither a method's name nor a Python file."""
    if method not in METHODS and not (method.endswith(".py") and Path(method).is_file()):
        raise StatetrimError(
            f"there is no method {method!r}; choose one of {', '.join(METHODS)}, "
            f"or give a Python file that defines select()"
        )


def listed_methods(methods: "str | Select | Sequence[str | Select]") -> "list[str | Select]":
    """One method or several; names and files may be separated by commas."""
    if isinstance(methods, str):
        return [name.strip() for name in methods.split(",")]
    return [methods] if callable(methods) else list(methods)


def methods_by_axis(methods: "Iterable[MethodLike]") -> "dict[Axis, MethodLike | str]":
    """Axis -> the first of `methods` that chooses along it, or its default method."""
    by_axis: dict[Axis, MethodLike | str] = {}
    for method in (*methods, *DEFAULT_METHODS.split(",")):
        by_axis = dict.fromkeys(find_method(method).axes, method) | by_axis
    return by_axis


def find_method(method: "str | Select") -> "Method":
    """A method from its name, a function, or the path of a Python file that defines `select`, which
    is executed."""
    from .contract import as_method

    if callable(method):
        return as_method(method)
    check_method(method)
    if method in METHODS:
        return as_method(importlib.import_module(f"{__name__}.{method}").select, method)
    path = Path(method)
    spec = importlib.util.spec_from_file_location("statetrim_outside_method", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    select: Select | None = getattr(module, "select", None)
    if not callable(select):
        raise StatetrimError(f"{path} defines no function select(evidence, keep)")
    return as_method(select, path.stem)
