"""Pictures of a sensitivity: the losses when one layer alone is pruned, by layer."""

from collections.abc import Callable

from ..artifacts.sensitivity import LayerCut, Sensitivity, variant_text
from .charts import Point, Series, line_chart
from .drawing import Drawing, Sheet

CAPTION = (
    "How to read it: each point is the whole model with one layer cut and all others as they were; "
    "a line is one width of one axis of the state. Bars are 95% intervals of the difference to the "
    "original. A layer that stands out carries the loss; layers near zero can be cut further."
)


def sheet(sensitivity: Sensitivity) -> Sheet:
    """All pictures in one figure."""
    return Sheet(pictures(sensitivity), CAPTION)


def pictures(sensitivity: Sensitivity) -> list[Drawing]:
    """By layer: recall lost in points, increase of NLL in nats, and the error of the layer's output
    on text and on recall sequences, in percent; a chart without points is left out."""

    def recall_point(cut: LayerCut) -> Point | None:
        drop = sensitivity.recall_drop(cut)
        if drop is None:
            return None
        return Point(cut.layer, 100 * drop.estimate, 100 * drop.low, 100 * drop.high)

    def nll_point(cut: LayerCut) -> Point:
        increase = sensitivity.nll_increase(cut)
        return Point(cut.layer, increase.estimate, increase.low, increase.high)

    def text_error_point(cut: LayerCut) -> Point:
        return Point(cut.layer, 100 * cut.error["text"])

    def recall_error_point(cut: LayerCut) -> Point:
        return Point(cut.layer, 100 * cut.error["recall"])

    drawings = []
    for to_point, title, unit in (
        (recall_point, "Recall lost when one layer is cut", "points"),
        (nll_point, "Text: increase of NLL when one layer is cut", "nats"),
        (text_error_point, "Error of the cut layer's output on text", "% of its square"),
        (recall_error_point, "The same on recall sequences", "% of its square"),
    ):
        drawing = _picture(sensitivity, to_point, title, unit)
        if drawing:
            drawings.append(drawing)
    return drawings


def _picture(
    sensitivity: Sensitivity, to_point: Callable[[LayerCut], Point | None], title: str, unit: str
) -> Drawing | None:
    """A chart with a line per variant and a point per layer."""
    series = []
    for axis, keep in sensitivity.variants:
        points = []
        for layer in sensitivity.layers:
            point = to_point(sensitivity.find(layer, axis, keep))
            if point:
                points.append(point)
        series.append(Series(variant_text(sensitivity, (axis, keep)), points))
    return line_chart(series, title, x="layer", y=unit, from_zero=True, marks=True)
