"""Command-line arguments that several studies share."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

_HELP = {
    "text": "to calibrate on",
    "test": "plain text for NLL and KL",
    "work": "keeps checkpoints and statistics for a next run",
    "name": "of the model in the results; default: its directory's",
    "windows": "of the test text",
    "length": "tokens of a window",
    "rows": "recall sequences per number of pairs",
    "sequences": "recall sequences for each number of pairs",
    "tokens": "of calibration",
    "seed": "of the calibration",
}
_PATHS = ("text", "test", "work", "results")


def study_parser(docstring: str | None, *required: str, **defaults: Any) -> argparse.ArgumentParser:
    """A parser for the script with this docstring. `required` are paths, of which "model" has no
    option name. The others have the type of their default, and a list takes several values."""
    arguments = path_parser(docstring, *(name for name in required if name == "model"))
    for name in required:
        if name != "model":
            arguments.add_argument(f"--{name}", type=Path, required=True, help=_HELP.get(name))
    for name, default in defaults.items():
        one = default[0] if isinstance(default, list) else default
        kind = Path if name in _PATHS else str if one is None else type(one)
        arguments.add_argument(
            f"--{name.replace('_', '-')}",
            type=kind,
            nargs="+" if isinstance(default, list) else None,
            default=Path(default) if kind is Path and default else default,
            help=_HELP.get(name),
        )
    return arguments


def path_parser(docstring: str | None, *names: str) -> argparse.ArgumentParser:
    """A parser for a script that takes these paths, in this order."""
    arguments = argparse.ArgumentParser(description=(docstring or "").split("\n\n")[0])
    for name in names:
        arguments.add_argument(name, type=Path)
    return arguments
