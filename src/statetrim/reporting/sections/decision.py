"""Why the state has this shape, where `trim --state` chose it."""

from collections.abc import Iterator

from ...maths.paired import Interval
from ..document import Block, Table, Text, as_sentence
from ..findings import Findings

TITLE = "Why this shape"


def blocks(findings: Findings) -> Iterator[Block]:
    """The decision in a sentence, and a table of all candidate shapes."""
    decision = findings.decision
    if decision is None:
        return
    yield Text(as_sentence(decision.sentence))
    candidates = {candidate.name: candidate for candidate in decision.measured}
    rows = []
    for shape, missed in decision.predicted.items():
        name = f"{shape} (chosen)" if shape == decision.chosen else shape
        loss, recall_loss = "not measured", ""
        candidate = candidates.get(shape)
        if candidate is not None:
            loss = _interval_text(candidate.loss, 4)
            if candidate.recall is not None:
                recall_loss = _interval_text(-candidate.recall, 1)
        refused_by = ", ".join(decision.refused.get(shape, ())) or "none known"
        rows.append([name, f"{100 * missed:.1f} %", loss, recall_loss, refused_by])
    header = ["keys x values", "output missed", "loss, nats", "recall lost, points", "refused by"]
    caption = (
        "Output missed is predicted: the part of the layers' output that is missed after a refit, "
        "over text and recall sequences. The best three were cut and measured, on "
        "other samples than those of the quality above; a positive figure is a loss"
    )
    yield Table(header, rows, caption)


def _interval_text(interval: Interval, digits: int) -> str:
    return f"{interval.estimate:+.{digits}f} ± {interval.margin:.{digits}f}"
