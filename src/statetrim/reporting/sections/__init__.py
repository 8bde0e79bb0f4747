"""Findings -> the sections of a report.

A section is a file here with a TITLE and a function `blocks`, and its name in ORDER. Where its
artifact is missing it yields what is `Missing`, and is named below all others.
"""

from collections.abc import Iterator
from importlib import import_module
from typing import Protocol

from ..document import Block, Section
from ..findings import Findings

ORDER = (
    "quality",
    "sweep",
    "decision",
    "state",
    "engines",
    "speed",
    "cut",
    "sensitivity",
    "ranks",
    "recovery",
    "reproduce",
    "lineage",
)
"""As a reader asks."""


class SectionModule(Protocol):
    """What a file of a section holds."""

    TITLE: str

    def blocks(self, findings: Findings) -> Iterator[Block]: ...


def build_sections(findings: Findings) -> list[Section]:
    modules: list[SectionModule] = [import_module(f".{name}", __package__) for name in ORDER]
    built = [Section(module.TITLE, list(module.blocks(findings))) for module in modules]
    return [section for section in built if section.blocks]
