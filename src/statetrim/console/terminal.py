"""What all commands share: the two consoles, and JSON.

Tables and JSON go to standard output; progress, notes and warnings to standard error.
"""

import json
from typing import Any

from rich.console import Console

out = Console(markup=False)
err = Console(stderr=True, markup=False)


def say(text: str, style: str | None = None) -> None:
    """A line on standard output; long ones are left to the terminal, so that a pipe gets one."""
    out.print(text, style=style, highlight=False, soft_wrap=True)


def note(text: str, style: str | None = None) -> None:
    """A line on standard error."""
    err.print(text, style=style, highlight=False, soft_wrap=True)


def show_json(value: dict[str, Any]) -> None:
    print(json.dumps(value, indent=2))
