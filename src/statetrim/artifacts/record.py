"""The reader and writer of all JSON artifacts: untrusted files -> dataclasses, and back."""

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from ..errors import StatetrimError
from ..maths.formatting import shorten
from ..maths.units import MAX_NUMBER, is_integer_list
from ..storage.json_file import read_json, write_json
from .header import check_header, header

Record = TypeVar("Record")


@runtime_checkable
class Checked(Protocol):
    """A dataclass that can check more of what a file states than the types of its fields."""

    def check(self) -> None:
        """Raise ValueError, whose message names the field, for values that are not valid."""


def read_artifact(path: str | Path, kind: str, record_type: type[Record], max_bytes: int) -> Record:
    """The artifact of this kind in an untrusted file of `max_bytes` at most.

    Raises StatetrimError as `read_fields` and `parse_record` do.
    """
    return parse_record(read_fields(path, kind, max_bytes), record_type, path)


def read_fields(path: str | Path, kind: str, max_bytes: int) -> dict[str, Any]:
    """The fields of an untrusted file, whose types are not checked.

    Raises StatetrimError if it cannot be read safely, or is of another kind or version.
    """
    stored = read_json(Path(path), max_bytes)
    check_header(stored, kind, path)
    return stored


def parse_record(stored: Any, record_type: type[Record], path: str | Path) -> Record:
    """Untrusted JSON values as a `record_type`; other fields than its own are left out.

    Raises StatetrimError, which names `path` and the field, if a field is missing or has another
    type, if a number is too large to plot, or if `check` of the record or a part of it fails.
    """
    import msgspec

    try:
        record = msgspec.convert(
            stored, record_type, strict=True, str_keys=True, dec_hook=_parse_special
        )
        _check_values(record, "")
    except (msgspec.ValidationError, ValueError) as error:
        reason, _, place = str(error).partition(" - at ")
        place = place.replace("$.", "").replace("$", "")
        message = f"{place}: {reason}" if place else reason
        raise StatetrimError(
            f"{path} is not valid: {shorten(message.replace('`', ''), 200)}"
        ) from None
    return record


def write_artifact(path: str | Path, kind: str, record: Any, *, indent: int | None = 2) -> None:
    """Write a dataclass, or a dict of fields, with the header of its kind; atomically."""
    write_json(Path(path), {**header(kind), **as_fields(record)}, indent=indent)


def as_fields(record: Any) -> dict[str, Any]:
    """A dataclass, or a dict of fields, as JSON values in the order of its fields."""
    import msgspec

    built: dict[str, Any] = msgspec.to_builtins(record, str_keys=True, enc_hook=_write_special)
    return built


def _parse_special(value_type: type, value: Any) -> Any:
    if value_type is Tensor:
        return _parse_table(value)
    raise NotImplementedError(value_type)


def _parse_table(table: Any) -> Tensor:
    """The kept channels of one layer [heads, keep] from a list with a list per head."""
    heads = table if isinstance(table, list) else []
    widths = {len(head) if isinstance(head, list) else 0 for head in heads}
    if len(widths) != 1 or 0 in widths:
        raise ValueError("every head must list the same number of channels")
    for head in heads:
        if not is_integer_list(head) or min(head) < 0 or max(head) >= 2**31:
            raise ValueError("channels must be whole numbers from 0")
    return torch.tensor(table, dtype=torch.int64)


def _write_special(value: Any) -> Any:
    if isinstance(value, str):  # such as torch's version
        return str(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Tensor):
        return value.tolist()
    raise NotImplementedError(type(value))


def _check_values(value: Any, place: str) -> None:
    """Check all numbers in `value`, and `value` and its parts by their own `check`."""
    for name, item in _iter_parts(value):
        if isinstance(item, int | float):
            if not abs(item) < MAX_NUMBER:
                raise ValueError(f"{_join(place, name)}: a number below {MAX_NUMBER:g} is expected")
        elif item is not None and not isinstance(item, str):
            _check_values(item, _join(place, name))
    if isinstance(value, Checked):
        try:
            value.check()
        except ValueError as error:
            raise ValueError(f"{place}: {error}" if place else str(error)) from None


def _iter_parts(value: Any) -> Iterable[tuple[Any, Any]]:
    """The fields, entries or items of a value, with their names or numbers."""
    if isinstance(value, dict):
        return value.items()
    if isinstance(value, list | tuple):
        return enumerate(value)
    if is_dataclass(value):
        return [(field.name, getattr(value, field.name)) for field in fields(value)]
    return ()


def _join(place: str, name: Any) -> str:
    return f"{place}.{name}" if place else str(name)
