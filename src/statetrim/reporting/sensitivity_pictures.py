"""Pictures of a sensitivity: the losses when one layer alone is pruned, by layer."""

from ..artifacts.sensitivity import LayerCut, Sensitivity, variant_text
from ..maths.paired import Interval
from .charts import Point, Series, Sheet, line_chart, sheet

CAPTION = (
    "How to read it: each point is the whole model with one layer cut and all others as they were; "
    "a line is one width of one axis of the state. Bars are 95% intervals of the difference to the "
    "original. A layer that stands out carries the loss; layers near zero can be cut further."
)
PANELS = {
    "recall": ("Recall lost when one layer is cut", "points"),
    "nll": ("Text: increase of NLL when one layer is cut", "nats"),
    "text error": ("Error of the cut layer's output on text", "% of its square"),
    "recall error": ("The same on recall sequences", "% of its square"),
}
"""What is drawn by layer -> its title and unit."""


def sensitivity_sheet(sensitivity: Sensitivity) -> Sheet:
    """A chart for each of PANELS, with a line per variant; one without points is left out."""
    points = {
        (cut.layer, cut.axis, cut.keep): _points(sensitivity, cut) for cut in sensitivity.cuts
    }
    charts = []
    for figure, (title, unit) in PANELS.items():
        series = []
        for variant in sensitivity.variants:
            by_layer = [points[layer, *variant] for layer in sensitivity.layers]
            drawn = [figures[figure] for figures in by_layer if figure in figures]
            series.append(Series(variant_text(sensitivity, variant), drawn))
        charts.append(line_chart(series, title, x="layer", y=unit, from_zero=True, marks=True))
    return sheet(charts, CAPTION)


def _points(sensitivity: Sensitivity, cut: LayerCut) -> dict[str, Point]:
    """The points of one cut layer; without recall if the original does not recall."""

    def point(x: Interval, scale: float = 1.0) -> Point:
        return Point(cut.layer, scale * x.estimate, scale * x.low, scale * x.high)

    drop = sensitivity.recall_drop(cut)
    points = {} if drop is None else {"recall": point(drop, 100)}
    points["nll"] = point(sensitivity.nll_increase(cut))
    for source in ("text", "recall"):
        points[f"{source} error"] = Point(cut.layer, 100 * cut.error[source])
    return points
