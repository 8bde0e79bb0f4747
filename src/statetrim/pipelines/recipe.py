"""Recipes: a run of `trim` as one YAML file with its model, its text and every option.

A recipe may not name a Python file (of a family or a method), so that it cannot run code.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, get_origin

import yaml

from ..errors import StatetrimError, check_option_names
from ..maths.formatting import shorten
from ..option_types import check_type
from ..storage.json_file import read_json
from ..storage.output import ARTIFACTS, MAX_RECORD_BYTES
from .options import TrimOptions

OPTIONS = tuple(field.name.rstrip("_") for field in fields(TrimOptions))  # `for`, not `for_`
KEYS = ("model", "output", *OPTIONS)
_PATH_KEYS = ("output", "data")  # always paths; the model and the text may be names on the hub
_MAX_BYTES = 2**14
_MAX_ITEMS = 64


def read_recipe(path: Path) -> dict[str, Any]:
    """The entries of a recipe by option (`for`, not `for_`), without empty ones. Relative paths
    start at the recipe's directory; a model or text that does not exist there stays as written."""
    entries = _parse_yaml(path)
    check_option_names("a recipe", map(str, entries), KEYS)
    types: dict[str, Any] = {item.name.rstrip("_"): item.type for item in fields(TrimOptions)}
    recipe = {}
    for name, value in entries.items():
        if value is None:
            continue
        items = value if isinstance(value, list) else [value]
        are_plain = all(isinstance(item, bool | int | float | str) for item in items)
        if not are_plain or not 0 < len(items) <= _MAX_ITEMS:
            raise StatetrimError(f"{path}: {name!r} must be a number, a text, or a list of texts")
        option, hint = f"--{name.replace('_', '-')}", types.get(name, str)  # str: model and output
        if name == "to" or get_origin(hint) is Sequence:  # a list, or as on the command line
            hint = hint | Sequence[str] | str
        check_type(f"{path}: {option}", hint, value)
        if name == "method" and ".py" in str(value):
            raise StatetrimError(
                f"{path}: a recipe names no Python file; leave out {name!r} and give {option} "
                "yourself"
            )
        recipe[name] = value
    for name in ("model", "text", *_PATH_KEYS):
        location = path.absolute().parent / str(recipe.get(name))
        try:
            if name in recipe and (name in _PATH_KEYS or location.exists()):
                recipe[name] = str(location)
        except OSError as error:
            raise StatetrimError(f"{path}: {name!r} is not a path: {error.strerror}") from None
    return recipe


def recipe_of_result(result: str | Path) -> dict[str, Any]:
    """The recipe of a result of `trim`, with a value for every option."""
    path = Path(result) / ARTIFACTS / "trim.json"
    if not path.is_file():
        reason = f"it has no {ARTIFACTS}/trim.json"
        raise StatetrimError(f"{result} is not a result of trim: {reason}")
    record = read_json(path, MAX_RECORD_BYTES)
    stored = record.get("recipe")
    if not isinstance(stored, dict) or "model" not in record:
        raise StatetrimError(f"{result} holds no recipe")
    options = {name: stored.get("for_" if name == "for" else name) for name in OPTIONS}
    return {"model": record["model"], **options}


def recipe_text(recipe: Mapping[str, Any], name: str) -> str:
    """A recipe as YAML that `read_recipe` reads; `name` is the result it describes."""
    comment = f"# {name} again: statetrim trim --recipe THIS-FILE -o OUT\n"
    return comment + str(yaml.safe_dump(dict(recipe), sort_keys=False, allow_unicode=True))


def _parse_yaml(path: Path) -> dict[Any, Any]:
    """The mapping in a YAML file; raises StatetrimError if it is too large or not a mapping."""
    try:
        if path.exists() and not path.is_file():
            raise StatetrimError(f"{path} is not a file, so it is not a recipe")
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise StatetrimError(f"{path} cannot be read: {error.strerror}") from None
    if len(text) > _MAX_BYTES:
        raise StatetrimError(f"{path} is larger than {_MAX_BYTES // 2**10} KiB: no recipe is")
    try:
        root, entries = yaml.compose(text, yaml.SafeLoader), yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        position = f" in line {mark.line + 1}" if mark else ""
        raise StatetrimError(f"{path} is not valid YAML{position}") from None
    if not isinstance(entries, dict):
        raise StatetrimError(f"{path} must hold lines such as 'to: 0.5'")
    names = [str(key.value) for key, _ in root.value]  # of which `entries` has the last
    for name in names:
        if names.count(name) > 1:
            raise StatetrimError(f"{path} has {shorten(name)!r} twice")
    return entries
