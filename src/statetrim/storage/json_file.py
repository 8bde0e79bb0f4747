"""Read JSON that is not to be trusted; write it so that a crash leaves the old file or the new."""

import json
from pathlib import Path
from typing import Any, NoReturn

from ..errors import StatetrimError
from ..maths.units import MIB
from .atomic import replacing

_MOST_CONTAINERS = 2**20  # Python spends some 100 bytes on every list and object
_MOST_DEPTH = 64  # writing recurses deeper than reading, so Python's own limit comes too late


def read_object(path: Path, most_bytes: int, *, constants: bool = False) -> dict[str, Any]:
    """The JSON object in `path`: bounded in size and depth, no repeated keys; NaN and Infinity
    only with `constants`, as in configs that Python wrote."""
    try:
        if not path.is_file():
            other = ": what is there is not a file" if path.exists() else ""
            raise StatetrimError(f"{path} is missing{other}")
        if path.stat().st_size > most_bytes:
            raise StatetrimError(
                f"{path} is larger than {most_bytes // MIB} MiB, so it is not read"
            )
        text = path.read_bytes()
    except OSError as error:
        raise StatetrimError(f"{path} cannot be read: {error.strerror}") from None
    return parse_object(text, str(path), constants=constants)


def parse_object(text: bytes, name: str, *, constants: bool = False) -> dict[str, Any]:
    """The JSON object in `text`; `name` is what an error calls it."""
    if text.count(b"[") + text.count(b"{") > _MOST_CONTAINERS:
        raise StatetrimError(f"{name} holds more than {_MOST_CONTAINERS} lists and objects")
    try:
        value = json.loads(
            text.decode(),
            object_pairs_hook=_without_repeats,
            parse_constant=None if constants else _no_constant,
        )
        _check_depth(value)
        if b"\\u" in text:  # half a surrogate pair can be read but not written
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        reason = str(error).partition("\n")[0][:120]
        raise StatetrimError(f"{name} is not valid JSON: {reason}") from None
    if not isinstance(value, dict):
        raise StatetrimError(f"{name} must hold a JSON object")
    return value


def write_object(path: Path, value: dict[str, Any], *, indent: int | None = 2) -> None:
    """The file appears whole; one that was there is replaced."""
    write_text(path, json.dumps(value, indent=indent, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """The file appears whole; one that was there is replaced."""
    with replacing(path) as written:
        written.write_text(text, encoding="utf-8")


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        absent = object()
        repeated = next(name for name, _ in pairs if found.pop(name, absent) is absent)
        raise ValueError(f"the name {repeated[:80]!r} appears twice")
    return found


def _check_depth(value: Any) -> None:
    level: list[Any] = [[value]]
    for _ in range(_MOST_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise ValueError(f"nested more than {_MOST_DEPTH} deep")


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")
