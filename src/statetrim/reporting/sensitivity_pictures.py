"""Pictures of a sensitivity: what each layer costs when it alone is cut."""

from collections.abc import Callable

from ..artifacts.sensitivity import LayerCut, Sensitivity
from ..geometry import Axis
from .charts import Point, Series, line_chart
from .drawing import Drawing, Sheet

CAPTION = (
    "How to read it: each point is the whole model with one layer cut and all others as they were; "
    "a line is one width of one axis of the state. Bars are 95% intervals of the difference to the "
    "original. A layer that stands out carries the loss; layers near zero can be cut further."
)


def sheet(found: Sensitivity) -> Sheet:
    return Sheet(pictures(found), CAPTION)


def pictures(found: Sensitivity) -> list[Drawing]:
    """Recall lost, NLL gained, and the layer's own error on recall sequences, by layer."""

    def recall(cut: LayerCut) -> Point | None:
        drop = found.recall_drop(cut)
        if drop is None:
            return None
        return Point(cut.layer, 100 * drop.estimate, 100 * drop.low, 100 * drop.high)

    def nll(cut: LayerCut) -> Point:
        change = found.nll_increase(cut)
        return Point(cut.layer, change.estimate, change.low, change.high)

    def error(source: str) -> Callable[[LayerCut], Point]:
        return lambda cut: Point(cut.layer, 100 * cut.error[source])

    drawn = (
        _picture(found, recall, "Recall lost when one layer is cut", "points"),
        _picture(found, nll, "Text: increase of NLL when one layer is cut", "nats"),
        _picture(
            found, error("text"), "Error of the cut layer's output on text", "% of its square"
        ),
        _picture(found, error("recall"), "The same on recall sequences", "% of its square"),
    )
    return [drawing for drawing in drawn if drawing]


def name(found: Sensitivity, variant: tuple[Axis, int]) -> str:
    axis, keep = variant
    return f"{keep} of {found.widths[axis]} {axis}s"


def _picture(
    found: Sensitivity, point: Callable[[LayerCut], Point | None], title: str, unit: str
) -> Drawing | None:
    series = []
    for axis, keep in found.variants:
        points = [point(found.find(layer, axis, keep)) for layer in found.layers]
        series.append(Series(name(found, (axis, keep)), [one for one in points if one]))
    return line_chart(series, title, x="layer", y=unit, from_zero=True, marks=True)
