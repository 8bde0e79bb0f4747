"""The first fields of every artifact: its kind and the version of its format."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import StatetrimError

VERSION = 1
_FIRST_SCORES_FORMAT = 1  # the "format" of the oldest scores, which state no kind


def header(kind: str) -> dict[str, Any]:
    """The first fields of an artifact or record of this kind."""
    return {"format": f"statetrim {kind}", "version": VERSION}


def kind_of(stored: Mapping[str, Any]) -> str | None:
    """The kind of artifact that the stored header states; None without a valid header."""
    name = stored.get("format")
    if type(name) is int and name == _FIRST_SCORES_FORMAT and "version" not in stored:
        return "scores"
    return name.removeprefix("statetrim ") if isinstance(name, str) else None


def check_header(stored: Mapping[str, Any], kind: str, path: str | Path) -> None:
    """Raise StatetrimError unless the artifact is of this kind and of the version read here."""
    if kind_of(stored) != kind:
        raise StatetrimError(f"{path} is not a statetrim {kind}")
    default = VERSION if stored.get("format") == _FIRST_SCORES_FORMAT else None
    version = stored.get("version", default)
    if type(version) is not int or version != VERSION:
        raise StatetrimError(
            f"{path} holds {kind} of version {str(version)[:20]}; this statetrim reads version "
            f"{VERSION}"
        )
