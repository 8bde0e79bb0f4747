"""Pictures of rank analyses, and of models whose states are emptied.

Of several analyses the first is the original's; a method has one colour in all pictures.
"""

from collections.abc import Iterator, Mapping

import torch

from ..artifacts.analysis import BINS, BINS_PER_DECADE, LOWEST_DECADE, Analysis
from ..artifacts.memory import Memory
from ..maths.formatting import evenly_spaced, percent_text
from ..reporting import charts
from .charts import ORIGINAL, Point, Series, Sheet, sheet
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
    """Singular values of one head's state: mean of each, and histogram over tokens; every analysis
    has the layer and the head."""
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


def memory_sheet(memory: Memory) -> Sheet:
    """The loss by tokens read, of the model as it is and with its states emptied."""
    lines = {"as it is": memory.original}
    lines |= {f"emptied every {x.every:,}": x.samples for x in memory.horizons}
    series = list[Series]()
    for name, samples in lines.items():
        values = zip(memory.positions, samples.nll_by_position, strict=False)
        points = [Point(position, value) for position, value in values]
        series.append(Series(name, points, "" if series else ORIGINAL))
    chart = charts.line_chart(series, "NLL by position", x="tokens read", y="nats", log_x=True)
    return sheet(
        [chart],
        "How to read it: all states are emptied at intervals (1: after every token); where that "
        "costs nothing, older tokens do not matter to them.",
    )
