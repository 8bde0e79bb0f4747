"""Findings -> the sections of a report.

A section is a file here with a TITLE and a function `blocks`, and its name in ORDER. Where its
artifact is missing it says which command makes it.
"""

from collections.abc import Iterator
from importlib import import_module
from typing import Protocol

from ..document import Block, Section
from ..findings import Findings

ORDER = (
    "cut",
    "state",
    "quality",
    "sweep",
    "sensitivity",
    "ranks",
    "speed",
    "engines",
    "recovery",
    "reproduce",
    "lineage",
)
"""As a reader asks."""


class Contents(Protocol):
    """What a file of a section holds."""

    TITLE: str

    def blocks(self, found: Findings) -> Iterator[Block]: ...


def sections(found: Findings) -> list[Section]:
    modules: list[Contents] = [import_module(f".{name}", __package__) for name in ORDER]
    return [Section(module.TITLE, list(module.blocks(found))) for module in modules]
