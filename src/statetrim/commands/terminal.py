"""Printing for all commands: text, tables and JSON to the consoles, and text and tables to the log.

Results (tables and JSON) go to standard output; progress, notes and warnings to standard error.
`--quiet` suppresses progress and notes; the file of `--log` gets everything except JSON.
"""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

from ..progress import is_rank_zero

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console
    from rich.table import Table as RichTable

    from ..maths.table import Table
    from .log import Log

log: Log | None = None


@cache
def out() -> Console:
    """Standard output."""
    return _console(stderr=False)


@cache
def err() -> Console:
    """Standard error."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    from ..progress.plain_console import PlainConsole  # imports rich, which --help does not need

    return PlainConsole(stderr=stderr, markup=False)


def print_text(text: str, style: str | None = None) -> None:
    """Print to standard output, wrapped between words in a terminal, one line in a pipe; and to the
    log."""
    _print(out(), text, style)
    append_to_log(text)


def print_command(text: str) -> None:
    """Print a command to standard output without wrapping, so that it can be copied; and to the
    log."""
    out().print(text, highlight=False, soft_wrap=True)
    append_to_log(text)


def note(text: str, style: str | None = None) -> None:
    """Print to standard error, unless --quiet, and to the log."""
    _print(err(), text, style)
    append_to_log(text)


def warn(text: str) -> None:
    """Print to standard error, also with --quiet, and to the log."""
    _print(_console(stderr=True) if err().quiet else err(), text, "yellow")
    append_to_log(text)


def _print(console: Console, text: str, style: str | None) -> None:
    """Print one text: wrapped between words in a terminal, on one line elsewhere."""
    console.print(text, style=style, highlight=False, soft_wrap=not console.is_terminal)


def new_table(title: str, *columns: str, left: int) -> RichTable:
    """A table without rows; the first `left` columns are left-aligned. Without columns it has no
    header, and each row is a name and a value."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", show_header=bool(columns))
    for number, name in enumerate(columns):
        table.add_column(name, justify="left" if number < left else "right")
    return table


def print_table(table: RichTable) -> None:
    """Print a table to standard output and to the log."""
    _render_table(out(), table)


def print_table_to_stderr(table: RichTable) -> None:
    """Print a table to standard error, unless --quiet, and to the log."""
    _render_table(err(), table)


def _render_table(console: Console, table: RichTable) -> None:
    """Print a table, whose columns are set to wrap long names, and write it to the log."""
    for column in table.columns:
        column.overflow = "fold"  # wrap a long name instead of shortening it
    console.print(table)
    if log:
        log.write_table(table)


def print_artifact_table(table: Table, left_columns: int) -> None:
    """Print a table to standard output and to the log; only the first `left_columns` are
    left-aligned."""
    rich_table = new_table(table.title, *table.header, left=left_columns)
    for row in table.rows:
        rich_table.add_row(*row)
    print_table(rich_table)


def print_json(value: dict[str, Any]) -> None:
    """Print JSON to standard output, and not to the log."""
    print(json.dumps(value, indent=2))


def append_to_log(text: str) -> None:
    """Write a line to the log only, if there is one."""
    if log:
        log.write_line(text)


def open_log(path: Path, command: str) -> None:
    """From now on also write everything except JSON to `path`, after `command`; only rank 0 does.
    Raises StatetrimError if `path` exists and is not a log, or cannot be written."""
    global log
    from .log import Log

    if is_rank_zero():
        log = Log(path)
        log.write_line(f"$ {command}")
