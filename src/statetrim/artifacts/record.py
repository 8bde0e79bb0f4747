"""The JSON files of statetrim: one reader of untrusted ones into dataclasses, and one writer."""

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor

from ..errors import StatetrimError
from ..maths.formatting import shorten
from ..maths.units import MAX_NUMBER, MIB, is_integer_list
from ..storage.json_file import read_json, write_json

VERSION = 1

Record = TypeVar("Record")


class Artifact:
    """A dataclass that is stored as one JSON file, which starts with its kind and version.

    It, and dataclasses in its fields, may have a method `validate`, called after an untrusted file
    is read. It raises ValueError, which names the field, for values that are not valid.
    """

    KIND: ClassVar[str]
    MAX_BYTES: ClassVar[int] = 24 * MIB  # of a file that is read
    INDENT: ClassVar[int | None] = 2

    def as_json(self) -> dict[str, Any]:
        """The content of the JSON file."""
        return {**header(self.KIND), **as_fields(self)}

    def save(self, path: str | Path) -> None:
        """Write the JSON file atomically, replacing an existing one."""
        write_json(Path(path), self.as_json(), indent=self.INDENT)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read an untrusted file; raises StatetrimError if it is damaged."""
        return parse_record(cls.read_fields(path), cls, path)

    @classmethod
    def read_fields(cls, path: str | Path) -> dict[str, Any]:
        """The fields of an untrusted file of this kind and version, whose types are not checked."""
        stored = read_json(Path(path), cls.MAX_BYTES)
        check_header(stored, cls.KIND, path)
        return stored


def header(kind: str) -> dict[str, Any]:
    """The first fields of an artifact or record of this kind."""
    return {"format": f"statetrim {kind}", "version": VERSION}


def kind_of(stored: Mapping[str, Any]) -> str | None:
    """The kind that the stored header states; None without a valid header."""
    name = stored.get("format")
    return name.removeprefix("statetrim ") if isinstance(name, str) else None


def check_header(stored: Mapping[str, Any], kind: str, path: str | Path) -> None:
    """Raise StatetrimError unless the artifact is of this kind and of the version read here."""
    if kind_of(stored) != kind:
        raise StatetrimError(f"{path} is not a statetrim {kind}")
    version = stored.get("version")
    if type(version) is not int or version != VERSION:
        raise StatetrimError(
            f"{path} holds {kind} of version {str(version)[:20]}; this statetrim reads version "
            f"{VERSION}"
        )


def parse_record(stored: Any, record_type: type[Record], path: str | Path) -> Record:
    """Untrusted JSON values as a `record_type`; other fields than its own are left out. Raises
    StatetrimError, which names `path` and the field."""
    import msgspec

    try:
        record = msgspec.convert(
            stored, record_type, strict=True, str_keys=True, dec_hook=_parse_special
        )
        _check_values(record, "$")
    except (msgspec.ValidationError, ValueError) as error:
        reason, _, place = str(error).partition(" - at ")
        place = place.replace("$.", "").replace("$", "")
        message = f"{place}: {reason}" if place else reason
        raise StatetrimError(
            f"{path} is not valid: {shorten(message.replace('`', ''), 200)}"
        ) from None
    return record


def as_fields(record: Any) -> dict[str, Any]:
    """A dataclass, or a dict of fields, as JSON values in the order of its fields."""
    import msgspec

    built: dict[str, Any] = msgspec.to_builtins(record, str_keys=True, enc_hook=_write_special)
    return built


def _parse_special(value_type: type, table: Any) -> Tensor:
    """The kept channels of one layer [heads, keep] from a list with a list per head."""
    if value_type is not Tensor:
        raise NotImplementedError(value_type)
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
    """Check numbers, and parts by their `validate`; errors end with the place, as msgspec's."""
    for name, item in _iter_parts(value):
        inner_place = f"{place}.{name}"
        if isinstance(item, int | float):
            if not abs(item) < MAX_NUMBER:
                raise ValueError(f"a number below {MAX_NUMBER:g} is expected - at {inner_place}")
        elif item is not None and not isinstance(item, str):
            _check_values(item, inner_place)
    if is_dataclass(value) and hasattr(value, "validate"):
        try:
            value.validate()
        except ValueError as error:
            raise ValueError(f"{error} - at {place}") from None


def _iter_parts(value: Any) -> Iterable[tuple[Any, Any]]:
    """The fields, entries or items of a value, with their names or numbers."""
    if isinstance(value, dict):
        return value.items()
    if isinstance(value, list | tuple):
        return enumerate(value)
    if is_dataclass(value):
        return [(field.name, getattr(value, field.name)) for field in fields(value)]
    return ()
