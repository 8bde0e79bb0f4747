"""Pictures of rank analyses and of sensitivities, for the report and for `analyze --figures`.

Of several analyses the first is the original's; a method has one colour in all pictures.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import gamma, pi, sqrt
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..artifacts.analysis import BINS, BINS_PER_DECADE, LOWEST_DECADE, Analysis, filter_similarity
from ..artifacts.sensitivity import LayerCut, Sensitivity, variant_text
from ..errors import StatetrimError
from ..maths.formatting import evenly_spaced, percent_text
from ..maths.paired import Interval
from ..reporting import charts
from .charts import ORIGINAL, Chart, Point, Series, Sheet, line_chart, sheet
from .theme import DIVERGING, LIGHT, SERIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

METHODS = ("drrqr", "grad", "l1", "s_wanda", "rand", "energy", "product")  # by number of colour
MAX_CURVE_POINTS = 300
MAX_FILTER_LAYERS = 4


SHEET_NAMES = ("utilization", "spectra", "heat-map", "filters")
"""The keys that `sheets` may return."""


def sheets(analyses: Mapping[str, Analysis]) -> dict[str, Sheet]:
    """Figures by file name; the spectra are of the first analysis' head with the highest rank.

    Filters are of the first analysis, and left out if it has no short convolution. Raises
    StatetrimError if another analysis lacks that head.
    """
    first = next(iter(analyses.values()))
    layer, head = fullest_head(first)
    by_name = {
        "utilization": utilization_curves(analyses),
        "spectra": spectra(analyses, layer, head),
        "heat-map": heat_map(analyses),
    }
    if first.geometry.conv_width:
        by_name["filters"] = filter_picture(first)
    return by_name


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


def filter_picture(analysis: Analysis) -> Sheet:
    """Filters of the short convolution of queries and keys, which the model must have, each scaled
    to norm one, by head, in at most MAX_FILTER_LAYERS layers at even distances."""
    width = analysis.geometry.conv_width
    layers = evenly_spaced(list(analysis.layers), MAX_FILTER_LAYERS)
    random_cosine = gamma(width / 2) / (sqrt(pi) * gamma((width + 1) / 2))  # mean |cosine|
    return sheet(
        [_filter_chart("query", analysis, layers), _filter_chart("key", analysis, layers)],
        "How to read it: every column is the filter of one channel, oldest token at the top, red "
        "above zero and blue below, the darker the stronger; lines part the heads. Stripes that "
        "run through a head are filters its channels share. Above each head, the mean |cosine| "
        f"between its filters: 1 means alike up to sign, {random_cosine:.2f} is what random "
        f"filters give.",
    )


def _filter_chart(side: str, analysis: Analysis, layers: Sequence[int]) -> Chart:
    """A band per layer: its heads side by side, the similarity of their filters above."""

    def draw(axes: "Axes") -> None:
        from matplotlib.colors import LinearSegmentedColormap

        scale = LinearSegmentedColormap.from_list("signs", DIVERGING)
        for row, layer in enumerate(layers):
            statistics = analysis.layers[layer]
            filters = statistics.query_filters if side == "query" else statistics.key_filters
            assert filters is not None
            top, heads = 1.7 * row, len(filters)
            band = (0, heads, top + 1, top)
            axes.imshow(
                _unit_taps(filters).numpy(), scale, extent=band, aspect="auto", vmin=-1, vmax=1
            )
            axes.vlines(range(1, heads), top, top + 1, color=LIGHT["ink"], linewidth=0.8)
            for head, value in enumerate(filter_similarity(filters).tolist()):
                if heads <= 12:
                    axes.text(head + 0.5, top - 0.08, f"{value:.2f}", ha="center")
        axes.set_xlim(0, heads)
        axes.set_ylim(1.7 * len(layers) - 0.6, -0.4)
        axes.set_yticks(
            [1.7 * row + 0.5 for row in range(len(layers))], map("layer {}".format, layers)
        )
        axes.set_xlabel("head")
        axes.grid(False)

    return Chart(f"{side} filters by head", 0.6 + 0.9 * len(layers), draw)


def _unit_taps(filters: Tensor) -> Tensor:
    """`filters` [heads, channels, copies, width], each scaled to norm one -> [width, columns]."""
    taps = filters.transpose(1, 2).reshape(-1, filters.shape[-1]).float()
    norms = taps.norm(dim=-1, keepdim=True).clamp(min=1e-30)
    unit_taps: Tensor = taps / norms
    return unit_taps.nan_to_num(0).t()


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
