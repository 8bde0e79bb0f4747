"""A run of `trim` as one file to review: its model, its text and every option.

A recipe names no Python file (a family's, or a method's): a file to read must not run code.
"""

from collections.abc import Mapping
from dataclasses import fields
from math import isfinite
from pathlib import Path
from typing import Any, get_args, get_type_hints

import yaml

from ..errors import StatetrimError, check_option_names
from ..maths.formatting import shorten
from ..storage.json_file import read_object
from ..storage.output import ARTIFACTS, MOST_RECORD_BYTES
from .options import TrimOptions

OPTIONS = tuple(field.name.rstrip("_") for field in fields(TrimOptions))  # `for`, not `for_`
KEYS = ("model", "output", "sweep", *OPTIONS)
_PATHS = ("output", "data")  # always; the model and the text may be names on the hub
_MOST_BYTES = 2**14
_MOST_ITEMS = 64


def read_recipe(path: Path) -> dict[str, Any]:
    """What a recipe says, by the names of the options; its paths are relative to its place."""
    found = _parsed(path)
    check_option_names("a recipe", map(str, found), KEYS)
    said = {name: value for name, value in found.items() if value is not None}
    for name, value in said.items():
        if not _is_plain(value) and not (isinstance(value, list) and _is_short(value)):
            raise StatetrimError(f"{path}: {name!r} must be a number, a text, or a list of texts")
        option = f"--{name.replace('_', '-')}"
        if not _fits(name, value):
            raise StatetrimError(f"{path}: {option} must be a number, not {shorten(value)!r}")
        if "method" in name and str(value).endswith(".py"):
            raise StatetrimError(
                f"{path}: a recipe names no Python file; leave out {name!r} and give {option} "
                "yourself"
            )
    for name in ("model", "text", *_PATHS):
        place = path.absolute().parent / str(said.get(name))
        try:
            if name in said and (name in _PATHS or place.exists()):
                said[name] = str(place)
        except OSError as error:
            raise StatetrimError(f"{path}: {name!r} is not a path: {error.strerror}") from None
    return said


def recipe_of(result: str | Path) -> dict[str, Any]:
    """The recipe of what `trim` or a sweep made, with a value for every option."""
    place = Path(result)
    trimmed, swept = place / ARTIFACTS / "trim.json", place / "sweep.json"
    if not trimmed.is_file() and not swept.is_file():
        raise StatetrimError(f"{place} is not a result of trim: it has no {ARTIFACTS}/trim.json")
    record = read_object(trimmed if trimmed.is_file() else swept, MOST_RECORD_BYTES)
    about = record if trimmed.is_file() else record.get("lineage")
    said = about.get("recipe") if isinstance(about, dict) else None
    if not isinstance(about, dict) or not isinstance(said, dict) or "model" not in about:
        raise StatetrimError(f"{place} was made before results kept their recipe")
    shapes = {"sweep": about["shapes"]} if "shapes" in about else {}
    options = {name: said.get("for_" if name == "for" else name) for name in OPTIONS}
    return {"model": about["model"], **shapes, **options}


def recipe_text(recipe: Mapping[str, Any], name: str) -> str:
    """A recipe as a YAML file, which `read_recipe` reads."""
    head = f"# {name} again: statetrim trim --recipe THIS-FILE -o OUT\n"
    return head + str(yaml.safe_dump(dict(recipe), sort_keys=False, allow_unicode=True))


def _parsed(path: Path) -> dict[Any, Any]:
    try:
        if path.exists() and not path.is_file():
            raise StatetrimError(f"{path} is not a file, so it is not a recipe")
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise StatetrimError(f"{path} cannot be read: {error.strerror}") from None
    if len(text) > _MOST_BYTES:
        raise StatetrimError(f"{path} is larger than {_MOST_BYTES // 2**10} KiB: no recipe is")
    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""
        raise StatetrimError(f"{path} is not valid YAML{where}") from None
    if not isinstance(found, dict):
        raise StatetrimError(f"{path} must hold lines such as 'state: 0.5'")
    return found


def _fits(name: str, value: Any) -> bool:
    """Whether a number stands where only a number means anything."""
    hint = get_type_hints(TrimOptions).get("for_" if name == "for" else name, str)
    kinds = {*(get_args(hint) or (hint,))} - {type(None)}
    if kinds == {int}:
        return type(value) is int
    return kinds != {float} or (type(value) in (int, float) and isfinite(value))


def _is_plain(value: Any) -> bool:
    return isinstance(value, bool | int | float | str)


def _is_short(values: list[Any]) -> bool:
    return 0 < len(values) <= _MOST_ITEMS and all(map(_is_plain, values))
