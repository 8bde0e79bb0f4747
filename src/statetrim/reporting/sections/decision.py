"""Why the state has this shape, where `trim --state` chose it."""

from collections.abc import Iterator

from ...maths.paired import Interval
from ..document import Block, Table, Text, as_sentence
from ..findings import Findings

TITLE = "Why this shape"


def blocks(findings: Findings) -> Iterator[Block]:
    decision = findings.decision
    if decision is None:
        return
    yield Text(as_sentence(decision.sentence))
    measured = {contender.name: contender for contender in decision.measured}
    rows = []
    for shape, missed in decision.predicted.items():
        contender = measured.get(shape)
        rows.append(
            [
                f"{shape} (chosen)" if shape == decision.chosen else shape,
                f"{100 * missed:.1f} %",
                "not measured" if contender is None else _interval_text(contender.loss, 4),
                ""
                if contender is None or contender.recall is None
                else _interval_text(-contender.recall, 1),
                ", ".join(decision.refused.get(shape, ())) or "none known",
            ]
        )
    header = ["keys x values", "output missed", "loss, nats", "recall lost, points", "refused by"]
    caption = (
        "Output missed is predicted: the part of the layers' output that is missed after a refit, "
        "over text and recall sequences. The best three were cut and measured, on "
        "other samples than those of the quality above; a positive figure is a loss"
    )
    yield Table(header, rows, caption)


def _interval_text(interval: Interval, digits: int) -> str:
    return f"{interval.estimate:+.{digits}f} ± {interval.margin:.{digits}f}"
