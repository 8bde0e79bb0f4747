"""What every artifact begins with: its kind, and the version of its format."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import StatetrimError

VERSION = 1
_FIRST_SCORES_FORMAT = 1  # what the first scores had for a format


def header(kind: str) -> dict[str, Any]:
    """The first fields of an artifact, or of a record."""
    return {"format": f"statetrim {kind}", "version": VERSION}


def kind_of(stored: Mapping[str, Any]) -> str | None:
    """Which kind of artifact this says it is."""
    name = stored.get("format")
    if type(name) is int and name == _FIRST_SCORES_FORMAT and "version" not in stored:
        return "scores"
    return name.removeprefix("statetrim ") if isinstance(name, str) else None


def check_header(stored: Mapping[str, Any], kind: str, path: str | Path) -> None:
    """Refuse what is not of this kind, or of a version that is not read here."""
    if kind_of(stored) != kind:
        raise StatetrimError(f"{path} is not a statetrim {kind}")
    version = stored.get(
        "version", VERSION if stored.get("format") == _FIRST_SCORES_FORMAT else None
    )
    if type(version) is not int or version != VERSION:
        raise StatetrimError(
            f"{path} holds {kind} of version {str(version)[:20]}; this statetrim reads version "
            f"{VERSION}"
        )
