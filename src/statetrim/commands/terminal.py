"""Printing for all commands: text, tables and JSON.

Results (tables and JSON) go to standard output; progress, notes and warnings to standard error.
`--quiet` suppresses progress and notes.
"""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from rich.console import Console


@cache
def out() -> Console:
    """Standard output."""
    return _console()


@cache
def err() -> Console:
    """Standard error."""
    return _console(stderr=True)


def _console(**settings: Any) -> Console:
    from .plain_console import PlainConsole  # imports rich, which --help does not need

    return PlainConsole(markup=False, **settings)


def print_text(text: str, style: str | None = None) -> None:
    """Print to standard output."""
    _print(out(), text, style)


def print_command(text: str) -> None:
    """Print a command to standard output without wrapping, so that it can be copied."""
    out().print(text, highlight=False, soft_wrap=True)


def note(text: str) -> None:
    """Print to standard error, unless --quiet."""
    _print(err(), text)


def warn(text: str) -> None:
    """Print to standard error, also with --quiet, but not while standard output is muted."""
    if not out().quiet:
        _print(_console(stderr=True) if err().quiet else err(), text, "yellow")


def _print(console: Console, text: str, style: str | None = None) -> None:
    """Print one text: wrapped between words in a terminal, on one line elsewhere."""
    console.print(text, style=style, highlight=False, soft_wrap=not console.is_terminal)


def print_table(
    title: str,
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    left: Collection[int] = (0,),
    to_stderr: bool = False,
) -> None:
    """Print a table to standard output, or to standard error unless --quiet.

    The columns `left` are words, left-aligned and wrapped between words in a narrow terminal; the
    others are figures, which stay whole. A table that does not fit so is printed as a list, a row
    after the other. Without a header, each row is a name and a value.
    """
    from rich.table import Table

    cells, names = list(rows), header or ("", "")
    words = left if header else range(len(names))
    console = err() if to_stderr else out()
    widths = _column_widths(names, cells, words, console.width)
    if widths is None:  # a list of rows: the first cell, then the others below it with their names
        console.print(title, highlight=False, soft_wrap=True)
        for row in cells:
            _print(console, row[0])
            for name, cell in zip(names[1:], row[1:], strict=True):
                if cell:
                    _print(console, f"  {name}: {cell}" if name else f"  {cell}")
        return
    table = Table(title=title, title_justify="left", show_header=bool(header))
    for number, name in enumerate(names):
        justify: Literal["left", "right"] = "left" if number in words else "right"
        table.add_column(name, justify=justify, width=widths[number], overflow="fold")
    for row in cells:
        table.add_row(*row)
    console.print(table)


def _column_widths(
    names: Sequence[str], rows: list[Sequence[str]], words: Collection[int], available: int
) -> list[int] | None:
    """Characters of each column with no word and no figure broken; None if they do not fit."""
    from rich.cells import cell_len

    widths, slack = list[int](), list[int]()
    for number, name in enumerate(names):
        cells = [row[number] for row in rows]
        lines = [line for cell in (name, *cells) for line in cell.split("\n")]
        whole = name.split()
        for cell in cells:
            whole += cell.split() if number in words else cell.split("\n")
        widths.append(max(map(cell_len, lines)))
        slack.append(widths[-1] - max(map(cell_len, whole), default=0))
    lines_between = 3 * len(widths) + 1
    for _ in range(sum(widths) + lines_between - available):
        widest = max(range(len(slack)), key=slack.__getitem__)
        if slack[widest] == 0:
            return None
        widths[widest] -= 1
        slack[widest] -= 1
    return widths


def print_json(value: dict[str, Any]) -> None:
    """Print JSON to standard output."""
    print(json.dumps(value, indent=2))
