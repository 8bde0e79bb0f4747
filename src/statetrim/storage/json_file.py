"""Read untrusted JSON files; write JSON and text atomically."""

import json
from collections import Counter
from pathlib import Path
from typing import Any, NoReturn

from ..errors import StatetrimError, errors_of
from ..maths.units import MIB
from .atomic import atomic_write

_MAX_CONTAINERS = 2**20  # each list or object takes about 100 bytes in Python
_MAX_DEPTH = 64  # json.dumps recurses deeper than json.loads, so RecursionError comes too late


def read_json(path: Path, max_bytes: int, *, allow_nan: bool = False) -> dict[str, Any]:
    """The JSON object in `path`, with `max_bytes` at most.

    Raises StatetrimError if it is missing or larger, if it nests deeper than 64 or repeats a key,
    and for anything but an object. `allow_nan` accepts NaN and Infinity, which Python writes into
    configs.
    """
    try:
        if not path.is_file():
            hint = ": what is there is not a file" if path.exists() else ""
            raise StatetrimError(f"{path} is missing{hint}")
        if path.stat().st_size > max_bytes:
            raise StatetrimError(f"{path} is larger than {max_bytes // MIB} MiB, so it is not read")
        text = path.read_bytes()
    except OSError as error:
        raise StatetrimError(f"{path} cannot be read: {error.strerror}") from None
    return parse_json(text, str(path), allow_nan=allow_nan)


def parse_json(text: bytes, name: str, *, allow_nan: bool = False) -> dict[str, Any]:
    """The JSON object in `text`, checked as in `read_json` except for its size."""
    if text.count(b"[") + text.count(b"{") > _MAX_CONTAINERS:
        raise StatetrimError(f"{name} holds more than {_MAX_CONTAINERS} lists and objects")
    with errors_of(f"{name} is not valid JSON", kinds=(ValueError, RecursionError)):
        value = json.loads(
            text.decode(),
            object_pairs_hook=_reject_repeated_keys,
            parse_constant=None if allow_nan else _reject_constant,
        )
        _check_depth([value], 0)
        if b"\\u" in text:  # half a surrogate pair can be decoded but not encoded
            json.dumps(value, ensure_ascii=False).encode()
    if not isinstance(value, dict):
        raise StatetrimError(f"{name} must hold a JSON object")
    return value


def write_json(path: Path, value: dict[str, Any], *, indent: int | None = 2) -> None:
    """Write a JSON file atomically, replacing an existing one."""
    write_text(path, json.dumps(value, indent=indent, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 file atomically, replacing an existing one."""
    with atomic_write(path) as scratch:
        scratch.write_text(text, encoding="utf-8")


def _reject_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        (name, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the name {name[:80]!r} appears twice")
    return fields


def _check_depth(outer: dict[str, Any] | list[Any], depth: int) -> None:
    if depth == _MAX_DEPTH:
        raise ValueError(f"nested more than {_MAX_DEPTH} deep")
    for inner in outer.values() if isinstance(outer, dict) else outer:
        if isinstance(inner, dict | list):
            _check_depth(inner, depth + 1)


def _reject_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")
