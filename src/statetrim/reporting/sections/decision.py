"""Why the state has this shape, where several were compared: sizes, losses and plans."""

from collections.abc import Iterator

from ...judging.decision_table import CAPTION, HEADER, decision_rows, needs_text
from ...judging.recommendation import recommend
from ...serving.capacity.compare import capacity_text, known_capacities
from ...serving.shapes import common_shapes
from ..document import Block, Missing, Table, Text, as_sentence
from ..findings import Findings, trim_command

_SUGGESTED_SHAPES = 3


def blocks(findings: Findings) -> Iterator[Block]:
    """The reason, and a table of all shapes."""
    decision, original = findings.decision, findings.original
    if decision is None:
        shapes = "96x96,64x64,48x48"
        if original is not None:
            shapes = ",".join(map(str, common_shapes(original.geometry)[:_SUGGESTED_SHAPES]))
        yield Missing(
            "Only one shape was measured. Several are calibrated once, and compared.",
            [trim_command(findings, shapes, "SMALLER")],
        )
        return
    advice = recommend(decision.points, findings.compared_scores)
    yield Text(as_sentence(decision.sentence or advice.reason))
    if decision.expected:
        yield Text(as_sentence(decision.expected))
    if advice.cuts:
        serving, caption = findings.counted_in, CAPTION
        if without_cut := known_capacities(original, None, serving):
            caption += f". Without a cut, {capacity_text(without_cut, serving, with_cut=False)}"
        yield Table(HEADER, decision_rows(decision, findings.compared_scores), caption)
        if needs := needs_text(decision):
            yield Text(as_sentence(needs))
