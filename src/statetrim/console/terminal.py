"""What all commands share: the two consoles, JSON, and the log.

Tables and JSON go to standard output; progress, notes and warnings to standard error. `--quiet`
leaves warnings and results; the file of `--log` gets everything but JSON.
"""

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from ..maths.table import Table
from ..progress import is_rank_zero
from ..progress.plain_console import PlainConsole
from .log import Log

out = PlainConsole(markup=False)
err = PlainConsole(stderr=True, markup=False)
log: Log | None = None


def print_text(text: str, style: str | None = None) -> None:
    """A sentence on standard output: a terminal breaks it between words, a pipe gets one line."""
    _print(out, text, style)
    append_to_log(text)


def print_command(text: str) -> None:
    """A line to be copied, which is one line wherever it is shown."""
    out.print(text, highlight=False, soft_wrap=True)
    append_to_log(text)


def note(text: str, style: str | None = None) -> None:
    """A sentence on standard error."""
    _print(err, text, style)
    append_to_log(text)


def warn(text: str) -> None:
    """A line on standard error that `--quiet` does not silence."""
    _print(PlainConsole(stderr=True, markup=False) if err.quiet else err, text, "yellow")
    append_to_log(text)


def _print(console: Console, text: str, style: str | None) -> None:
    console.print(text, style=style, highlight=False, soft_wrap=not console.is_terminal)


def print_table(table: RichTable) -> None:
    """A table on standard output."""
    _render_table(out, table)


def print_table_to_stderr(table: RichTable) -> None:
    """A table on standard error, before the work."""
    _render_table(err, table)


def _render_table(console: Console, table: RichTable) -> None:
    for column in table.columns:
        column.overflow = "fold"  # a long name takes two lines rather than losing its end
    console.print(table)
    if log:
        log.write_table(table)


def print_artifact_table(table: Table, left_columns: int) -> None:
    """An artifact's table; all columns but the first `left` are figures, below names that fold."""
    rich_table = RichTable(title=table.title, title_justify="left")
    for number, name in enumerate(table.header):
        rich_table.add_column(name, justify="left" if number < left_columns else "right")
    for row in table.rows:
        rich_table.add_row(*row)
    print_table(rich_table)


def print_json(value: dict[str, Any]) -> None:
    print(json.dumps(value, indent=2))


def append_to_log(text: str) -> None:
    """A line in the log alone."""
    if log:
        log.write_line(text)


def open_log(path: Path, command: str) -> None:
    """From here on everything is written to `path` too, by the first of several processes."""
    global log
    if is_rank_zero():
        log = Log(path)
        log.write_line(f"$ {command}")
