"""Findings -> the sections of a report.

A section is a module here with a TITLE and a function `blocks`, whose name is in ORDER. If its
artifact was not given, `blocks` yields `Missing`, and the section is listed at the end.
"""

from importlib import import_module

from ..document import Picture, Section
from ..findings import Findings

ORDER = (
    "quality", "decision", "state", "engines", "speed", "copies", "cut", "sensitivity", "ranks",
    "recovery", "reproduce", "lineage",
)  # fmt: skip
"""Modules, in the order of the report."""


def build_sections(findings: Findings) -> list[Section]:
    """All sections in ORDER, without those that yield no block."""
    built = []
    for name in ORDER:
        module = import_module(f".{name}", __package__)
        blocks = []
        for block in module.blocks(findings):
            if not isinstance(block, Picture) or block.drawing is not None:
                blocks.append(block)
        if blocks:
            built.append(Section(module.TITLE, blocks))
    return built
