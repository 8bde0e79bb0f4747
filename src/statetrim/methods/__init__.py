"""One file per selection method; the file's name is the method's name, its function is `select`."""

import importlib
import importlib.util
import pkgutil
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import StatetrimError

if TYPE_CHECKING:  # names can be checked before torch is imported
    from .contract import Method, Select, Selectable


def method_names(axis: "Selectable | None" = None) -> list[str]:
    """Every method, or those that choose channels of one axis, or heads."""
    names = sorted({module.name for module in pkgutil.iter_modules(__path__)} - {"contract"})
    return [name for name in names if axis is None or axis in find_method(name).axes]


def check_method(method: str) -> None:
    """Refuse what names no method."""
    if method not in method_names() and not (method.endswith(".py") and Path(method).is_file()):
        raise StatetrimError(
            f"there is no method {method!r}; choose one of {', '.join(method_names())}, "
            f"or give a Python file that defines select()"
        )


def find_method(method: "str | Select") -> "Method":
    """A method by name, by a function, or by the path of a Python file with a `select` in it.

    A file is run: only give your own.
    """
    from .contract import as_method

    if callable(method):
        return as_method(method)
    check_method(method)
    if method in method_names():
        return as_method(importlib.import_module(f"{__name__}.{method}").select, method)
    return as_method(_load_select(Path(method)), Path(method).stem)


def _load_select(path: Path) -> "Select":
    spec = importlib.util.spec_from_file_location("statetrim_outside_method", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    select: Select | None = getattr(module, "select", None)
    if not callable(select):
        raise StatetrimError(f"{path} defines no function select(evidence, keep)")
    return select
