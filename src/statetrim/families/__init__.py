"""Model families, one per file: every module here without a leading underscore, except
`_NOT_FAMILIES`, must define `FAMILY` and is registered by `families()`."""

import importlib
import importlib.util
import pkgutil
from functools import cache
from pathlib import Path

from ..errors import StatetrimError
from ._refused import REFUSED
from .contract import Config, Family

_NOT_FAMILIES = ("contract", "recurrences")
"""Public modules of this package that define no `FAMILY`."""


@cache
def families() -> dict[str, Family]:
    """All families of this package, by `model_type`."""
    by_model_type: dict[str, Family] = {}
    for module in pkgutil.iter_modules(__path__):
        if not module.name.startswith("_") and module.name not in _NOT_FAMILIES:
            family = importlib.import_module(f"{__name__}.{module.name}").FAMILY
            by_model_type |= dict.fromkeys(family.model_types, family)
    return by_model_type


def family_of(config: Config) -> Family:
    """The family for the config's `model_type`; refuses a missing or unsupported type."""
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or len(model_type) > 100:
        raise StatetrimError("config.json has no 'model_type', so the family is unknown")
    if model_type in REFUSED:
        raise StatetrimError(f"{model_type} cannot be pruned: {REFUSED[model_type]}")
    if model_type not in families():
        supported = ", ".join(sorted(families()))
        raise StatetrimError(f"model type {model_type!r} is not supported; these are: {supported}")
    return families()[model_type]


def family_from_file(path: str | Path) -> Family:
    """The `FAMILY` that a Python file defines; refuses a file without one. Executes the file, so it
    must be trusted; its own errors are not caught."""
    spec = importlib.util.spec_from_file_location("statetrim_outside_family", path)
    if spec is None or spec.loader is None or not Path(path).is_file():
        raise StatetrimError(f"{path} is not a Python file with a FAMILY in it")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    family = getattr(module, "FAMILY", None)
    if not isinstance(family, Family):
        raise StatetrimError(f"{path} defines no FAMILY that is a statetrim Family")
    family.file = Path(path)
    return family
