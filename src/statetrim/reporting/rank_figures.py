"""Pictures of analyses, in one style: colour-blind safe, PNG and SVG, each says how to read it."""

import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..artifacts.analysis import BINS, BINS_PER_DECADE, LOWEST_DECADE, Analysis, filter_similarity
from ..errors import StatetrimError
from ..maths.formatting import evenly

try:
    import matplotlib
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, PercentFormatter
except ImportError:
    raise StatetrimError("figures need matplotlib: pip install 'statetrim[report]'") from None

# Okabe and Ito's palette without its yellow; black is for what came before.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
METHODS = ("drrqr", "grad", "l1", "s_wanda", "rand", "energy", "product")  # in that order
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1)), (0, (5, 1, 1, 1)))
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E5E5E5",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "figure.constrained_layout.use": True,
    "savefig.dpi": 130,
    "svg.fonttype": "none",
    "svg.hashsalt": "statetrim",
}
SEQUENTIAL, DIVERGING = "cividis", "RdBu_r"
MOST_NUMBERED = 16  # heads or layers up to which a heat map shows its numbers
MOST_FILTER_LAYERS = 4


def save(figure: Figure, path: str | Path) -> list[Path]:
    """Write `figure` as PATH.png and PATH.svg; the same figure gives the same bytes."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    written = []
    with matplotlib.rc_context(STYLE):
        for suffix, metadata in (("png", {"Software": None}), ("svg", {"Date": None})):
            written.append(path.with_name(f"{path.name}.{suffix}"))
            figure.savefig(written[-1], metadata=metadata)
    return written


def save_all(analyses: Mapping[str, Analysis], directory: str | Path) -> list[Path]:
    """Every picture of these analyses; the spectra are those of the fullest head of the first."""
    first = next(iter(analyses.values()))
    fullest = int(first.mean_utilization.nan_to_num().argmax())
    row, head = divmod(fullest, first.geometry.num_v_heads)
    layer = list(first.layers)[row]
    pictures = {
        "utilization": utilization_curves(analyses),
        "spectra": spectra(analyses, layer, head),
        "heat-map": heat_map(analyses),
    }
    if first.geometry.conv_width:
        pictures["filters"] = filter_picture(first)
    return [path for name, x in pictures.items() for path in save(x, Path(directory) / name)]


def utilization_curves(analyses: Mapping[str, Analysis]) -> Figure:
    """Rank utilization by token, mean over layers and heads, one line an analysis."""
    first = next(iter(analyses.values()))
    with drawn(7.0, 3.9) as figure:
        axes = figure.add_subplot()
        for label, analysis, line in _lines(analyses):
            width = f"{label} ({analysis.widest})" if len(analyses) > 1 else label
            axes.plot(analysis.positions, analysis.curve, label=width, **line)
        axes.set_xlabel("token index")
        axes.set_ylabel("rank utilization")
        axes.set_xlim(0, int(first.positions[-1]))
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
        if len(analyses) > 1:
            _legend_beside(figure, axes, "model (largest rank)")
        captioned(
            figure,
            "How to read it: effective rank of the state, as a share of the largest rank it could "
            "have, after each token; mean over layers, heads and sequences. Lines with the same "
            "largest rank compare directly; a narrower state reaches a higher share with less "
            "in it. The rise at the left is forced: a state has no higher rank than tokens seen.",
        )
    return figure


def spectra(analyses: Mapping[str, Analysis], layer: int, head: int) -> Figure:
    """Singular values of one head's state: the mean of each, and how all of them spread."""
    for label, analysis in analyses.items():
        heads = analysis.geometry.num_v_heads
        if layer not in analysis.layers or not 0 <= head < heads:
            raise StatetrimError(
                f"{label} has no layer {layer} with a head {head}; its linear layers are "
                f"{', '.join(map(str, analysis.layers))[:80]}, each with heads 0 to {heads - 1}"
            )
    with drawn(8.0, 4.1) as figure:
        left, right = figure.subplots(1, 2)
        lowest, highest = BINS, 0
        for label, analysis, line in _lines(analyses):
            found = analysis.layers[layer]
            values = found.spectrum[head]
            index = torch.arange(1, len(values) + 1)
            left.plot(index, values.clamp(min=10.0**LOWEST_DECADE), label=label, **line)
            counts = found.histogram[head].double()
            share = counts / counts.sum().clamp(min=1) * analysis.widest
            used = counts.nonzero().squeeze(1)
            if len(used):
                lowest, highest = min(lowest, int(used[0])), max(highest, int(used[-1]))
            edges = 10 ** (torch.arange(BINS + 1) / BINS_PER_DECADE + LOWEST_DECADE)
            right.stairs(share, edges, color=line["color"], linestyle=line["linestyle"], lw=1.5)
        left.set_yscale("log")
        left.set_xlabel("singular value, from the largest")
        left.set_ylabel("mean over tokens")
        left.xaxis.set_major_locator(MaxNLocator(integer=True))
        right.set_xscale("log")
        if lowest < BINS:
            right.set_xlim(float(edges[max(0, lowest - 1)]), float(edges[min(BINS, highest + 2)]))
        right.set_ylim(bottom=0)
        right.set_xlabel("size of a singular value")
        right.set_ylabel("singular values per state and bin")
        figure.suptitle(f"State spectrum of layer {layer}, head {head}", fontsize=10)
        _legend_beside(figure, left, None)
        captioned(
            figure,
            "How to read it: left, the singular values of the head's state in order, each averaged "
            "over tokens after the burn-in; a steep fall means few directions carry the memory. "
            "Right, the same values pooled over tokens; the area under a line is the number of "
            "singular values of one state. Values in the far tail are directions hardly used.",
        )
    return figure


def heat_map(analyses: Mapping[str, Analysis]) -> Figure:
    """Mean utilization of every layer and head, one panel an analysis, one colour scale."""
    panels = {label: analysis.mean_utilization for label, analysis in analyses.items()}
    top = max(float(panel.nan_to_num().max()) for panel in panels.values())
    layers, heads = next(iter(panels.values())).shape
    width = min(11.0, 1.6 + len(panels) * (1.0 + 0.5 * min(heads, MOST_NUMBERED)))
    with drawn(max(5.0, width), 2.3 + 0.3 * min(layers, 24)) as figure:
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for place, (label, panel) in zip(axes, panels.items(), strict=True):
            image = place.imshow(panel.numpy(), cmap=SEQUENTIAL, vmin=0, vmax=top, aspect="auto")
            names = list(analyses[label].layers)
            title = f"{label} (largest rank {analyses[label].widest})"
            _count_axes(place, title, names, panel.shape[1])
            if max(panel.shape) <= MOST_NUMBERED:
                _number_cells(place, panel, top)
        bar = figure.colorbar(image, ax=list(axes), format=PercentFormatter(1.0), pad=0.02)
        bar.set_label("rank utilization")
        bar.outline.set_visible(False)
        captioned(
            figure,
            "How to read it: one cell is one head; its colour is the share of the largest possible "
            "rank that its state uses, on average after the burn-in. Dark heads keep little.",
        )
    return figure


def filter_picture(analysis: Analysis) -> Figure:
    """Convolution filters of queries and keys, each scaled to norm one, side by side by head."""
    layers = evenly(list(analysis.layers), MOST_FILTER_LAYERS)
    if analysis.geometry.conv_width == 0:
        raise StatetrimError("this model has no short convolution, so there are no filters to show")
    with drawn(8.6, 1.6 + 1.15 * len(layers)) as figure:
        grid = figure.subplots(len(layers), 2, squeeze=False)
        for row, layer in enumerate(layers):
            found = analysis.layers[layer]
            for column, (side, filters) in enumerate(
                (("query", found.query_filters), ("key", found.key_filters))
            ):
                assert filters is not None
                image = _show_filters(grid[row, column], filters)
                grid[row, column].set_ylabel(f"layer {layer}" if column == 0 else "")
                if row == 0:
                    grid[row, column].set_title(f"{side} filters", pad=16)
        bar = figure.colorbar(image, ax=grid, pad=0.02)
        bar.set_label("tap of the unit filter")
        bar.outline.set_visible(False)
        captioned(
            figure,
            "How to read it: every column is the filter of one channel, oldest token at the top, "
            "lines part the heads. Stripes that run through a head are filters its channels share. "
            "Above each head, the mean |cosine| between its filters: 1 means alike up to sign, "
            f"{_chance(analysis.geometry.conv_width):.2f} is what random filters give.",
        )
    return figure


def _show_filters(axes: Axes, filters: Tensor) -> Any:
    """`filters` [heads, channels, copies, width]; copies stand side by side."""
    heads, channels, copies, width = filters.shape
    taps = filters.transpose(1, 2).reshape(-1, width)
    taps = taps / taps.norm(dim=-1, keepdim=True).clamp(min=1e-30)
    image = axes.imshow(
        taps.T.numpy(), cmap=DIVERGING, vmin=-1, vmax=1, aspect="auto", interpolation="nearest"
    )
    axes.grid(False)
    axes.set_yticks([])
    span = channels * copies
    axes.set_xticks([span * (head + 0.5) - 0.5 for head in range(heads)])
    axes.set_xticklabels([f"head {h}" if heads <= 4 else str(h) for h in range(heads)])
    axes.tick_params(length=0)
    for head, value in enumerate(filter_similarity(filters).tolist()):
        if head:
            axes.axvline(span * head - 0.5, color="black", lw=1.0)
        axes.text(span * (head + 0.5) - 0.5, -0.6, f"{value:.2f}", ha="center", va="bottom", size=7)
    return image


def _count_axes(axes: Axes, title: str, layers: list[int], heads: int) -> None:
    axes.set_title(title)
    axes.set_xlabel("head")
    axes.set_ylabel("layer")
    axes.grid(False)
    shown = evenly(list(range(len(layers))), 12)
    axes.set_yticks(shown, [str(layers[row]) for row in shown])
    axes.set_xticks(evenly(list(range(heads)), 16))
    axes.tick_params(length=0)


def _number_cells(axes: Axes, panel: Tensor, top: float) -> None:
    for row, cells in enumerate(panel.tolist()):
        for column, value in enumerate(cells):
            ink = "white" if value < 0.55 * top else "black"
            axes.text(column, row, f"{100 * value:.0f}", ha="center", va="center", c=ink, size=8)


def _lines(analyses: Mapping[str, Analysis]) -> Iterator[tuple[str, Analysis, dict[str, Any]]]:
    """The first is what came before: black. A method has its colour in every picture, and a dash
    of its own for print without colour."""
    free = [number for number in range(len(METHODS)) if METHODS[number] not in analyses]
    for number, (label, analysis) in enumerate(analyses.items()):
        if number == 0:
            yield label, analysis, {"color": "black", "linestyle": "-", "linewidth": 1.7}
            continue
        slot = METHODS.index(label) if label in METHODS else (free or [0]).pop(0)
        line = {"color": COLOURS[slot], "linestyle": DASHES[(slot + 1) % len(DASHES)]}
        yield label, analysis, line | {"linewidth": 1.7}


def _legend_beside(figure: Figure, axes: Axes, title: str | None) -> None:
    """Outside the axes, where it covers no data."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside right center", frameon=False, title=title, handlelength=2.6
    )


def captioned(figure: Figure, text: str) -> None:
    """How to read it, below."""
    characters = int(figure.get_figwidth() * 16.5)
    lines = "\n".join(textwrap.wrap(text, characters))
    figure.supxlabel(lines, fontsize=8, x=0.015, ha="left", color="#444444")


def _chance(width: int) -> float:
    """Mean |cosine| of two random directions in `width` dimensions."""
    from math import gamma, pi, sqrt

    return gamma(width / 2) / (sqrt(pi) * gamma((width + 1) / 2))


@contextmanager
def drawn(width: float, height: float) -> Iterator[Figure]:
    """A figure of our style, drawn without pyplot: no window, no state left behind."""
    with matplotlib.rc_context(STYLE):
        yield Figure(figsize=(width, height))
