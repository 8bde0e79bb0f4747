"""What all commands share: the two consoles, JSON, and bars over tokens, bytes and layers.

Tables and JSON go to standard output; progress, notes and warnings to standard error.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

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


@contextmanager
def tokens_progress(label: str) -> Iterator[Any]:
    """Yields a function to call with the tokens done and in all."""
    if _hidden():
        yield Lines(label, "tokens")
        return
    columns = (
        TextColumn(label),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("tokens"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, transient=True) as progress:
        task = progress.add_task(label, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


@contextmanager
def bytes_progress(label: str, total: int) -> Iterator[Any]:
    """Yields a function to call with the bytes just written."""
    if _hidden():
        lines, done = Lines(label, "bytes"), 0

        def written(count: int) -> None:
            nonlocal done
            done += count
            lines(done, total)

        yield written
        return
    columns = (
        TextColumn(label),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, transient=True) as progress:
        task = progress.add_task(label, total=total)
        yield lambda count: progress.advance(task, count)


def layers_progress(label: str) -> Any:
    """Wraps an iteration over layers in a progress bar."""
    from rich.progress import track

    return lambda layers: track(
        layers, description=label, console=err, transient=True, disable=_hidden()
    )


class Lines:
    """For a log: a line now and then, none for what is done at once."""

    patience = 10.0  # seconds

    def __init__(self, label: str, unit: str) -> None:
        self.label, self.unit = label, unit
        self.told = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        if time.monotonic() - self.told >= self.patience:
            self.told = time.monotonic()
            text = f"{self.label}: {done:,} of {total:,} {self.unit}, {100 * done // total}%"
            note(text)


def _hidden() -> bool:
    """Only a terminal gets a bar; in a log it would be an empty line before what matters."""
    return not err.is_terminal
