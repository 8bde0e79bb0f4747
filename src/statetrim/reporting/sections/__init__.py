"""Findings -> the sections of a report. A section without its artifact says how to make it."""

from ..document import Section
from ..findings import Findings
from .cut import cut
from .made import lineage, recovered, reproduce
from .quality import quality
from .ranks import ranks
from .speed import engines, speed
from .state import state
from .widths import widths


def sections(found: Findings) -> list[Section]:
    """Every section, in the order a reader asks."""
    made = (
        ("What was cut", cut),
        ("State before and after", state),
        ("Quality", quality),
        ("Quality against state size", widths),
        ("How full the state is", ranks),
        ("Speed", speed),
        ("Where it runs", engines),
        ("Recovery", recovered),
        ("How to reproduce it", reproduce),
        ("Lineage", lineage),
    )
    return [Section(title, list(blocks(found))) for title, blocks in made]
