"""The pictures of rank_analysis.py, which compare analyses of one model and its cuts.

The first analysis is the original's; a method has one colour in all pictures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

import torch
from torch import Tensor

import statetrim as st
from statetrim.artifacts.analysis import BINS, BINS_PER_DECADE, LOWEST_DECADE
from statetrim.maths.formatting import evenly_spaced, percent_text
from statetrim.reporting.charts import ORIGINAL, Chart, Point, Series, line_chart
from statetrim.reporting.theme import LIGHT, SERIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

METHODS = ("drrqr", "grad", "l1", "s_wanda", "rand", "energy", "product")  # by number of colour
MAX_CURVE_POINTS = 300
MAX_CELLS = 4096
EMPTY, FULL = "#e9f0f8", "#0b3c70"  # both ends of the scale of shares, 0 and 1
ON_EMPTY, ON_FULL = "#1b2431", "#fffffe"  # text on a cell


@dataclass(frozen=True)
class Sheet:
    """A figure: charts side by side and a caption that says how to read them."""

    panels: Sequence[Chart]
    caption: str


def sheet(panels: Sequence[Chart | None], caption: str) -> Sheet:
    """A sheet of the charts that have something to draw."""
    return Sheet([panel for panel in panels if panel is not None], caption)


def utilization_curves(analyses: Mapping[str, st.Analysis]) -> Sheet:
    """Rank in use by token position, mean over layers and heads; a line per analysis."""
    series = []
    for label, analysis, style in _with_styles(analyses):
        positions, shares = analysis.positions.tolist(), analysis.utilization_by_position.tolist()
        points = [Point(x, y) for x, y in zip(positions, shares, strict=True)]
        name = f"{label} (largest rank {analysis.max_rank})"
        series.append(Series(name, evenly_spaced(points, MAX_CURVE_POINTS), style))
    chart = line_chart(
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


def spectra(analyses: Mapping[str, st.Analysis], layer: int, head: int) -> Sheet:
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
    spectrum = line_chart(
        ordered,
        f"Singular values of the state of layer {layer}, head {head}",
        x="singular value, from the largest",
        y="mean over tokens",
        log=True,
    )
    histogram = line_chart(
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


def heat_map(analyses: Mapping[str, st.Analysis]) -> Sheet:
    """Mean utilization by layer and head; a panel per analysis, on one colour scale."""
    top = max(float(x.mean_utilization.nan_to_num().max()) for x in analyses.values())
    panels = []
    for label, analysis in analyses.items():
        title = f"Rank in use, {label} (of {analysis.max_rank}), in %"
        layers = list(map(str, analysis.layers))
        panels.append(_cells(analysis.mean_utilization, layers, title, top))
    return sheet(
        panels,
        "How to read it: a row a layer, a column a head; the colour of a cell is the share of the "
        "largest possible rank that the head's state uses, on average after the burn-in. Dark "
        "heads are full, pale heads keep little.",
    )


def _cells(values: Tensor, names: Sequence[str], title: str, top: float) -> Chart | None:
    """`values` [rows, columns] from 0 to `top`: the darker a cell, the larger its share of `top`.

    `names` label the rows. None if there are more than MAX_CELLS cells.
    """
    rows, columns = values.shape
    if rows * columns > MAX_CELLS:
        return None

    def draw(axes: Axes) -> None:
        from matplotlib.colors import LinearSegmentedColormap

        scale = LinearSegmentedColormap.from_list("shares", [EMPTY, FULL])
        cells = values.nan_to_num(0.0).numpy()
        mesh = axes.pcolormesh(cells, cmap=scale, vmin=0, vmax=top or 1, edgecolor=LIGHT["ground"])
        for row, column in torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).tolist():
            if columns <= 12 and rows <= 48:
                value = float(values[row, column])
                text = f"{100 * value:.0f}" if isfinite(value) else "?"
                colour = ON_FULL if value > 0.6 * top else ON_EMPTY
                centre = (column + 0.5, row + 0.5)
                axes.text(*centre, text, color=colour, ha="center", va="center")
        shown = range(0, rows, -(-rows // 24))
        axes.set_yticks([row + 0.5 for row in shown], [names[row] for row in shown])
        shown = range(0, columns, -(-columns // 16))
        axes.set_xticks([column + 0.5 for column in shown], [str(column) for column in shown])
        axes.xaxis.tick_top()
        axes.invert_yaxis()
        axes.grid(False)
        steps = torch.linspace(0, top or 1, 9).tolist()
        bar = axes.figure.colorbar(mesh, ax=axes, orientation="horizontal", boundaries=steps)
        bar.set_ticks([0, top or 1], labels=["0%", f"{100 * top:.0f}%"])

    return Chart(title, 0.9 + 0.24 * rows, draw)


def _with_styles(analyses: Mapping[str, st.Analysis]) -> Iterator[tuple[str, st.Analysis, str]]:
    """Label, analysis and style; of several analyses the first is drawn as the original."""
    for number, (label, analysis) in enumerate(analyses.items()):
        if number == 0 and len(analyses) > 1:
            yield label, analysis, ORIGINAL
        elif label in METHODS:
            yield label, analysis, SERIES[METHODS.index(label)]
        else:
            yield label, analysis, ""
