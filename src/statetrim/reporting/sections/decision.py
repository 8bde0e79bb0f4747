"""Why the state has this shape, where `trim --state` chose it."""

from collections.abc import Iterator

from ...maths.paired import Interval
from ..document import Block, Table, Text, sentence
from ..findings import Findings

TITLE = "Why this shape"


def blocks(found: Findings) -> Iterator[Block]:
    decision = found.decision
    if decision is None:
        return
    yield Text(sentence(decision.sentence))
    measured = {one.name: one for one in decision.measured}
    rows = []
    for shape, cost in decision.predicted.items():
        one = measured.get(shape)
        rows.append(
            [
                f"{shape} (chosen)" if shape == decision.chosen else shape,
                f"{100 * cost:.1f} %",
                "not measured" if one is None else _signed(one.loss, 4),
                "" if one is None or one.recall is None else _signed(-one.recall, 1),
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


def _signed(interval: Interval, digits: int) -> str:
    return f"{interval.estimate:+.{digits}f} ± {interval.margin:.{digits}f}"
