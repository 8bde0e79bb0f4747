"""What all commands share: the two consoles, and JSON.

Tables and JSON go to standard output; progress, notes and warnings to standard error.
"""

import json
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from ..maths.table import Table

out = Console(markup=False)
err = Console(stderr=True, markup=False)


def say(text: str, style: str | None = None) -> None:
    """A line on standard output; long ones are left to the terminal, so that a pipe gets one."""
    out.print(text, style=style, highlight=False, soft_wrap=True)


def note(text: str, style: str | None = None) -> None:
    """A line on standard error."""
    err.print(text, style=style, highlight=False, soft_wrap=True)


def show_table(table: Table, left: int) -> None:
    """An artifact's table; all columns but the first `left` are figures, below names that fold."""
    shown = RichTable(title=table.title, title_justify="left")
    for number, name in enumerate(table.header):
        if number < left:
            shown.add_column(name)
        else:
            shown.add_column(name, justify="right", overflow="fold")
    for row in table.rows:
        shown.add_row(*row)
    out.print(shown)


def show_json(value: dict[str, Any]) -> None:
    print(json.dumps(value, indent=2))
