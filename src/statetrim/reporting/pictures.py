"""Pictures of rank analyses and of sensitivities.

Of several analyses the first is the original's; a method has one colour in all pictures.
"""

from collections.abc import Iterator, Mapping

import torch

from ..artifacts.analysis import BINS, BINS_PER_DECADE, LOWEST_DECADE, Analysis
from ..artifacts.sensitivity import LayerCut, Sensitivity, variant_text
from ..errors import StatetrimError
from ..maths.formatting import evenly_spaced, percent_text
from ..maths.paired import Interval
from ..reporting import charts
from .charts import ORIGINAL, Point, Series, Sheet, line_chart, sheet
from .theme import SERIES

METHODS = ("drrqr", "grad", "l1", "s_wanda", "rand", "energy", "product")  # by number of colour
MAX_CURVE_POINTS = 300


def fullest_head(analysis: Analysis) -> tuple[int, int]:
    """Layer and value head with the highest mean utilization."""
    index = int(analysis.mean_utilization.nan_to_num().argmax())
    row, head = divmod(index, analysis.geometry.num_v_heads)
    return list(analysis.layers)[row], head


def utilization_curves(analyses: Mapping[str, Analysis]) -> Sheet:
    """Rank in use by token position, mean over layers and heads; a line per analysis."""
    series = []
    for label, analysis, style in _with_styles(analyses):
        positions, shares = analysis.positions.tolist(), analysis.utilization_by_position.tolist()
        points = [Point(x, y) for x, y in zip(positions, shares, strict=True)]
        name = f"{label} (largest rank {analysis.max_rank})"
        series.append(Series(name, evenly_spaced(points, MAX_CURVE_POINTS), style))
    chart = charts.line_chart(
        series,
        "Share of the largest rank in use, by token",
        x="token",
        y="rank in use",
        format_y=percent_text,
        from_zero=True,
    )
    return sheet(
        [chart],
        "How to read it: effective rank of the state, as a share of the largest rank it could "
        "have, after each token; mean over layers, heads and sequences. Lines with the same "
        "largest rank compare directly; a narrower state reaches a higher share with less in it. "
        "The rise at the left is forced: a state has no higher rank than tokens seen.",
    )


def spectra(analyses: Mapping[str, Analysis], layer: int, head: int) -> Sheet:
    """Singular values of one head's state: mean of each, and histogram over tokens.

    Raises StatetrimError if an analysis lacks the layer or the head.
    """
    for label, analysis in analyses.items():
        heads = analysis.geometry.num_v_heads
        if layer not in analysis.layers or not 0 <= head < heads:
            raise StatetrimError(
                f"{label} has no layer {layer} with a head {head}; its linear layers are "
                f"{', '.join(map(str, analysis.layers))[:80]}, each with heads 0 to {heads - 1}"
            )
    bin_centres = 10 ** ((torch.arange(BINS) + 0.5) / BINS_PER_DECADE + LOWEST_DECADE)
    ordered, pooled = [], []
    for label, analysis, style in _with_styles(analyses):
        statistics = analysis.layers[layer]
        values = statistics.spectrum[head].tolist()
        points = [Point(number, value) for number, value in enumerate(values, start=1)]
        ordered.append(Series(label, points, style))
        counts = statistics.histogram[head].double()
        values_per_state = counts / counts.sum().clamp(min=1) * analysis.max_rank
        non_empty = counts.nonzero().squeeze(1)
        if len(non_empty):
            bins = range(max(0, int(non_empty[0]) - 1), min(BINS, int(non_empty[-1]) + 2))
            points = [Point(float(bin_centres[n]), float(values_per_state[n])) for n in bins]
            pooled.append(Series(label, points, style))
    spectrum = charts.line_chart(
        ordered,
        f"Singular values of the state of layer {layer}, head {head}",
        x="singular value, from the largest",
        y="mean over tokens",
        log=True,
    )
    histogram = charts.line_chart(
        pooled,
        "The same, pooled over tokens",
        x="size of a singular value",
        y="values per state and bin",
        log_x=True,
        from_zero=True,
    )
    return sheet(
        [spectrum, histogram],
        "How to read it: left, the singular values of the head's state in order, each averaged "
        "over tokens after the burn-in; a steep fall means few directions carry the memory. "
        "Right, the same values pooled over tokens; the area under a line is the number of "
        "singular values of one state. Values in the far tail are directions hardly used.",
    )


def heat_map(analyses: Mapping[str, Analysis]) -> Sheet:
    """Mean utilization by layer and head; a panel per analysis, on one colour scale."""
    top = max(float(x.mean_utilization.nan_to_num().max()) for x in analyses.values())
    panels = []
    for label, analysis in analyses.items():
        title = f"Rank in use, {label} (of {analysis.max_rank}), in %"
        layers = list(map(str, analysis.layers))
        panels.append(charts.heat_map(analysis.mean_utilization, layers, title, top))
    return sheet(
        panels,
        "How to read it: a row a layer, a column a head; the colour of a cell is the share of the "
        "largest possible rank that the head's state uses, on average after the burn-in. Dark "
        "heads are full, pale heads keep little.",
    )


def _with_styles(analyses: Mapping[str, Analysis]) -> Iterator[tuple[str, Analysis, str]]:
    """Label, analysis and style; of several analyses the first is drawn as the original."""
    for number, (label, analysis) in enumerate(analyses.items()):
        if number == 0 and len(analyses) > 1:
            yield label, analysis, ORIGINAL
        elif label in METHODS:
            yield label, analysis, SERIES[METHODS.index(label)]
        else:
            yield label, analysis, ""


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
