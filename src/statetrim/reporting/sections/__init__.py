"""Findings -> the sections of a report.

A section is a module here with a TITLE and a function `blocks`, whose name is in ORDER. If its
artifact was not given, `blocks` yields `Missing`, and the section is listed at the end.
"""

from importlib import import_module
from importlib.util import find_spec

from ..document import Gallery, Picture, Section
from ..findings import Findings

ORDER = (
    "quality", "decision", "state", "engines", "speed", "copies", "cut", "sensitivity", "ranks",
    "recovery", "reproduce",
)  # fmt: skip
"""Modules, in the order of the report."""


def build_sections(findings: Findings) -> list[Section]:
    """All sections in ORDER, without those that yield no block; without matplotlib, the tables
    stand alone."""
    built, draws = [], find_spec("matplotlib") is not None
    for name in ORDER:
        module = import_module(f".{name}", __package__)
        blocks = []
        for block in module.blocks(findings):
            is_empty = isinstance(block, Picture) and block.chart is None
            if not is_empty and (draws or not isinstance(block, Picture | Gallery)):
                blocks.append(block)
        if blocks:
            built.append(Section(module.TITLE, blocks))
    return built
