"""Findings -> the sections of a report.

A section is a function that yields blocks, listed in SECTIONS with its heading. If its artifact was
not given, it yields `Missing`, and the section is listed at the end.
"""

from importlib.util import find_spec

from ..document import Picture, Section
from ..findings import Findings
from . import cut, measured, quality, recovery, serving

SECTIONS = {
    "Quality": quality.blocks,
    "Why this shape": cut.shape,
    "Memory before and after": serving.memory,
    "Where it runs": serving.engines,
    "Speed": measured.speed,
    "Stored copies": measured.copies,
    "What was cut": cut.plan,
    "Which layer carries what": measured.layers,
    "What each layer remembers": measured.memory,
    "Effective rank of the state": measured.ranks,
    "Recovery": recovery.blocks,
    "How to reproduce it": cut.reproduce,
}
"""Heading -> its function, in the order of the report."""


def build_sections(findings: Findings) -> list[Section]:
    """All sections that yield a block; without matplotlib, the tables stand alone."""
    built, draws = [], find_spec("matplotlib") is not None
    for title, blocks_of in SECTIONS.items():
        blocks = []
        for block in blocks_of(findings):
            if not isinstance(block, Picture) or (draws and block.chart is not None):
                blocks.append(block)
        if blocks:
            built.append(Section(title, blocks))
    return built
