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


def sheet(sensitivity: Sensitivity) -> Sheet:
    return Sheet(pictures(sensitivity), CAPTION)


def pictures(sensitivity: Sensitivity) -> list[Drawing]:
    """Recall lost, NLL gained, and the layer's own error on recall sequences, by layer."""

    def recall(layer_cut: LayerCut) -> Point | None:
        drop = sensitivity.recall_drop(layer_cut)
        if drop is None:
            return None
        return Point(layer_cut.layer, 100 * drop.estimate, 100 * drop.low, 100 * drop.high)

    def nll(layer_cut: LayerCut) -> Point:
        change = sensitivity.nll_increase(layer_cut)
        return Point(layer_cut.layer, change.estimate, change.low, change.high)

    def error(source: str) -> Callable[[LayerCut], Point]:
        return lambda cut: Point(cut.layer, 100 * cut.error[source])

    drawings = (
        _picture(sensitivity, recall, "Recall lost when one layer is cut", "points"),
        _picture(sensitivity, nll, "Text: increase of NLL when one layer is cut", "nats"),
        _picture(
            sensitivity, error("text"), "Error of the cut layer's output on text", "% of its square"
        ),
        _picture(sensitivity, error("recall"), "The same on recall sequences", "% of its square"),
    )
    return [drawing for drawing in drawings if drawing]


def variant_text(sensitivity: Sensitivity, variant: tuple[Axis, int]) -> str:
    axis, keep = variant
    return f"{keep} of {sensitivity.widths[axis]} {axis}s"


def _picture(
    sensitivity: Sensitivity, to_point: Callable[[LayerCut], Point | None], title: str, unit: str
) -> Drawing | None:
    series = []
    for axis, keep in sensitivity.variants:
        points = [to_point(sensitivity.find(layer, axis, keep)) for layer in sensitivity.layers]
        series.append(
            Series(
                variant_text(sensitivity, (axis, keep)),
                [drawable for drawable in points if drawable],
            )
        )
    return line_chart(series, title, x="layer", y=unit, from_zero=True, marks=True)
