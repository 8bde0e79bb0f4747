"""Printing for all commands: text, tables and JSON to the consoles, and text and tables to the log.

Results (tables and JSON) go to standard output; progress, notes and warnings to standard error.
`--quiet` suppresses progress and notes; the file of `--log` gets everything except JSON.
"""

from __future__ import annotations

import json
import time
from functools import cache
from typing import TYPE_CHECKING, Any

from ..errors import StatetrimError
from ..progress import is_rank_zero

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from pathlib import Path

    from rich.console import Console

_LOG_FIRST_LINE = "# statetrim log"
_LOG_WIDTH = 120


class _Log:
    """The file of --log; a run appends to the log of earlier runs and refuses any other file."""

    def __init__(self, path: Path) -> None:
        if path.exists() and not self._is_log(path):
            raise StatetrimError(
                f"{path} exists already and is not a log of statetrim; choose another name"
            )
        try:
            self.file = path.open("a", encoding="utf-8", buffering=1)
        except OSError as error:
            raise StatetrimError(f"{path} cannot be written: {error.strerror}") from None
        if not self.file.tell():
            self.file.write(f"{_LOG_FIRST_LINE}\n")
        self.console = _console(file=self.file, width=_LOG_WIDTH, no_color=True)

    @staticmethod
    def _is_log(path: Path) -> bool:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            start = file.read(len(_LOG_FIRST_LINE))
        return start in (b"", _LOG_FIRST_LINE.encode())


_log: _Log | None = None


def open_log(path: Path, command: str) -> None:
    """From now on also write everything except JSON to `path`, after `command`; only rank 0 does.
    Raises StatetrimError if `path` exists and is not a log, or cannot be written."""
    global _log
    if is_rank_zero():
        _log = _Log(path)
        append_to_log(f"$ {command}")


def append_to_log(text: str) -> None:
    """Write a timestamp and the text, without control characters, to the log if there is one."""
    if _log:
        printable = "".join(c if c.isprintable() or c == "\n" else " " for c in text)
        _log.file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {printable}\n")


@cache
def out() -> Console:
    """Standard output."""
    return _console()


@cache
def err() -> Console:
    """Standard error."""
    return _console(stderr=True)


def _console(**settings: Any) -> Console:
    from ..progress.plain_console import PlainConsole  # imports rich, which --help does not need

    return PlainConsole(markup=False, **settings)


def print_text(text: str, style: str | None = None) -> None:
    """Print to standard output and to the log."""
    _print(out(), text, style)


def print_command(text: str) -> None:
    """Print a command to standard output without wrapping, so that it can be copied; and to the
    log."""
    out().print(text, highlight=False, soft_wrap=True)
    append_to_log(text)


def note(text: str) -> None:
    """Print to standard error, unless --quiet, and to the log."""
    _print(err(), text)


def warn(text: str) -> None:
    """Print to standard error, also with --quiet, and to the log."""
    _print(_console(stderr=True) if err().quiet else err(), text, "yellow")


def _print(console: Console, text: str, style: str | None = None) -> None:
    """Print one text: wrapped between words in a terminal, on one line elsewhere."""
    console.print(text, style=style, highlight=False, soft_wrap=not console.is_terminal)
    append_to_log(text)


def print_table(
    title: str,
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    left: Collection[int] = (0,),
    unwrapped: Collection[int] = (),
    total: Sequence[str] = (),
    to_stderr: bool = False,
) -> None:
    """Print a table to standard output, or to standard error unless --quiet; and to the log.

    The columns `left` are left-aligned, the others right-aligned; a narrow terminal wraps all but
    the columns `unwrapped`. `total` is a last row, below a line. Without a header, each row is a
    name and a value.
    """
    from rich.table import Table

    table = Table(
        title=title, title_justify="left", show_header=bool(header), show_footer=bool(total)
    )
    for number, name in enumerate(header or ("", "")):
        table.add_column(
            name,
            total[number] if total else "",
            justify="left" if number in left or not header else "right",
            no_wrap=number in unwrapped,
            overflow="fold",  # wrap a long name instead of shortening it
        )
    for row in rows:
        table.add_row(*row)
    (err() if to_stderr else out()).print(table)
    if _log:
        _log.console.print(table)


def print_json(value: dict[str, Any]) -> None:
    """Print JSON to standard output, and not to the log."""
    print(json.dumps(value, indent=2))
