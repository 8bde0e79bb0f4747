"""The picture of a sweep: what is lost against what a sequence costs, so that a knee shows."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from ..artifacts.sweep import Point, Sweep
from .rank_figures import COLOURS, captioned, drawn

MOST_PANELS = 3


def sweep_figure(sweep: Sweep) -> Figure:
    """The main metric of each task, one panel each; bars are 95% intervals."""
    metrics = _main_metrics(sweep)
    with drawn(3.2 * len(metrics), 3.6) as figure:
        for number, metric in enumerate(metrics, start=1):
            _panel(figure.add_subplot(1, len(metrics), number), sweep, metric)
        captioned(
            figure,
            "How to read it: each point is a cut of the model to so much recurrent state per "
            "sequence (fp32), labelled keys x values of a head; bars are 95% intervals of the "
            "difference to the original, which is the dashed line. Where values are cut, output "
            "projections are refitted. Cut until the curve bends.",
        )
    return figure


def _main_metrics(sweep: Sweep) -> list[str]:
    """The first metric of each task."""
    first: dict[str, str] = {}
    for name in sweep.points[0].scores:
        first.setdefault(name.split()[0], name)
    return list(first.values())[:MOST_PANELS]


def _panel(axes: Axes, sweep: Sweep, metric: str) -> None:
    original, *cuts = sweep.points
    before = original.scores[metric]
    axes.axhline(before.value, color="black", linewidth=1.0, linestyle="dashed", label="original")
    for number, (kind, points) in enumerate(_kinds(original, cuts).items()):
        found = [point.scores[metric] for point in points]
        sizes = [point.state_bytes / original.state_bytes for point in points]
        bars = [
            [x.value - (x.value if x.low is None else x.low) for x in found],
            [(x.value if x.high is None else x.high) - x.value for x in found],
        ]
        axes.errorbar(
            sizes,
            [x.value for x in found],
            yerr=[[max(0.0, bar) for bar in side] for side in bars],
            marker="o",
            markersize=4,
            capsize=2,
            color=COLOURS[number % len(COLOURS)],
            label=kind,
        )
        for size, x, point in zip(sizes, found, points, strict=True):
            axes.annotate(
                f"{point.keep}x{point.keep_values}",
                (size, x.value),
                textcoords="offset points",
                xytext=(4, (5, -10, 12)[number % 3]),  # kinds at equal bytes lie close
                fontsize=7,
                color="#444444",
            )
    axes.set_title(metric)
    axes.set_xlabel("state, part of the original's")
    axes.set_xlim(0, 1.08)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    if before.unit == "share":
        axes.set_ylim(0, 1.02)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.legend(frameon=False, fontsize=8)


def _kinds(original: Point, cuts: list[Point]) -> dict[str, list[Point]]:
    """Cuts of keys, of values and of both, each a line."""
    kinds: dict[str, list[Point]] = {}
    for cut in cuts:
        keys, values = cut.keep < original.keep, cut.keep_values < original.keep_values
        kind = "keys and values" if keys and values else "values" if values else "keys"
        kinds.setdefault(kind, []).append(cut)
    return kinds
