"""Findings -> the sections of a report.

A section is a module here with a TITLE and a function `blocks`, whose name is in ORDER. If its
artifact was not given, `blocks` yields `Missing`, and the section is listed at the end.
"""

from collections.abc import Iterator
from importlib import import_module
from typing import Protocol

from ..document import Block, Section
from ..findings import Findings

ORDER = (
    "quality",
    "decision",
    "state",
    "engines",
    "speed",
    "copies",
    "cut",
    "sensitivity",
    "ranks",
    "recovery",
    "reproduce",
    "lineage",
)
"""Modules, in the order of the report."""


class SectionModule(Protocol):
    """The interface of a section's module."""

    TITLE: str

    def blocks(self, findings: Findings) -> Iterator[Block]: ...


def build_sections(findings: Findings) -> list[Section]:
    """All sections in ORDER, without those that yield no block."""
    built = []
    for name in ORDER:
        module: SectionModule = import_module(f".{name}", __package__)
        section = Section(module.TITLE, list(module.blocks(findings)))
        if section.blocks:
            built.append(section)
    return built
