"""Numbers -> charts, line charts and intervals, in the colours of the page.

A chart is a function that draws on matplotlib's axes when a page or a file needs it (`figures`).
Charts are narrow enough to be readable on a phone. One with nothing to draw is None; the report
shows all numbers in tables too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, NamedTuple

from ..maths.formatting import shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {
    "ground": ("#ffffff", "#12171d"),
    "panel": ("#f4f6f8", "#1b222b"),
    "ink": ("#1b2430", "#e6eaf0"),
    "faint": ("#55606e", "#a3adba"),
    "line": ("#d5dbe2", "#35404d"),
    "shadow": ("#7d8794", "#000000"),
    "accent": ("#0b62a8", "#6db6f2"),
    "good": ("#e4f4ea", "#13301f"),
    "good-edge": ("#1a7f4b", "#4fc985"),
    "fair": ("#fff4dd", "#2e2612"),
    "fair-edge": ("#b27300", "#d9a03a"),
    "bad": ("#fdeae8", "#3a1a18"),
    "bad-edge": ("#b3261e", "#f2877e"),
    "unknown": ("#eef1f4", "#232b35"),
    "unknown-edge": ("#6b7280", "#9aa4b2"),
    "series-0": ("#0b62a8", "#6db6f2"),
    "series-1": ("#b34700", "#f29b5c"),
    "series-2": ("#00785a", "#4fc9a5"),
    "series-3": ("#9a3d78", "#dd8fbe"),
    "series-4": ("#8a6100", "#e0b84f"),
    "series-5": ("#5b6b00", "#b9c95c"),
    "series-6": ("#6b7280", "#9aa4b2"),
}
"""Name -> its colour in the light and in the dark scheme."""
LIGHT = {name: light for name, (light, _) in COLOURS.items()}
DARK = {name: dark for name, (_, dark) in COLOURS.items()}
SERIES = tuple(name for name in COLOURS if name.startswith("series-"))
_DASHES = ((), (7, 3), (2, 3), (8, 3, 2, 3), (12, 3), (4, 4), (9, 3, 2, 3, 2, 3))
DASHES = {name: (0, dash) for name, dash in zip(SERIES, _DASHES, strict=True) if dash}
"""Colour of a line -> its dashes, in points; lines without are solid."""

PLOT_HEIGHT = 2.6  # inches
MAX_CURVE_POINTS = 300
LARGEST_DRAWN = 1e30  # larger magnitudes, infinities and NaN are not drawn
SMALLEST_DRAWN = 1e-30  # on a logarithmic axis

Formatter = Callable[[float], str]
number_text: Formatter = "{:g}".format
ORIGINAL = "original"  # the style of the model before a cut


@dataclass(frozen=True)
class Chart:
    """Draws on empty axes of `height` inches; `title` is the text alternative."""

    title: str
    height: float
    draw: Callable[["Axes"], None]


class Point(NamedTuple):
    """A point of a line."""

    x: float
    y: float


@dataclass(frozen=True)
class Series:
    """A line of a chart; `style` is one of `SERIES`, `ORIGINAL`, or "" for the next unused one."""

    name: str
    points: Sequence[Point]
    style: str = ""


def line_chart(
    series: Sequence[Series],
    title: str,
    *,
    x: str,
    y: str,
    format_y: Formatter = number_text,
    log_x: bool = False,
    from_zero: bool = False,
) -> Chart | None:
    """Lines over one pair of axes; points that are not finite, or not right of 0 on a logarithmic
    axis, are left out. None if none remains. `from_zero` includes 0 in the y axis."""
    drawable = []
    for line in series:
        points = [point for point in line.points if _is_drawable(point, log_x)]
        if points:
            drawable.append(Series(line.name, points, line.style))
    if not drawable:
        return None

    def draw(axes: "Axes") -> None:
        requested = {line.style for line in drawable}
        unused = cycle([name for name in SERIES if name not in requested] or SERIES[:1])
        for line in drawable:
            style = line.style or next(unused)
            colour = LIGHT["ink" if style == ORIGINAL else style]
            across, up = zip(*line.points, strict=True)
            name, dash = shorten(line.name, 46), DASHES.get(style, "solid")
            axes.plot(across, up, color=colour, linestyle=dash, label=name)
        if log_x:
            axes.set_xscale("log")
        if from_zero:
            axes.update_datalim([(drawable[0].points[0].x, 0.0)])
            axes.autoscale_view()
        axes.xaxis.set_major_formatter(lambda value, _: number_text(value))
        axes.yaxis.set_major_formatter(lambda value, _: format_y(value))
        axes.minorticks_off()
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        if len(drawable) > 1:
            axes.legend(loc="lower left", bbox_to_anchor=(0, 1), frameon=False)

    return Chart(title, PLOT_HEIGHT + 0.2 * len(drawable), draw)


def interval_chart(
    rows: Sequence[tuple[str, float, float, float]], title: str, x: str
) -> Chart | None:
    """Rows of (label, estimate, low, high), each drawn below its label, on one scale with 0. Rows
    that are not finite are left out; None if none remains."""
    rows = [row for row in rows if all(map(_is_in_range, row[1:]))]
    if not rows:
        return None

    def draw(axes: "Axes") -> None:
        axes.axvline(0, color=LIGHT["faint"], linewidth=0.8, linestyle=(0, (3, 3)))
        for number, (label, estimate, low, high) in enumerate(rows):
            axes.hlines(number, low, high, color=LIGHT["series-0"], linewidth=2)
            axes.plot([estimate], [number], "o", color=LIGHT["series-0"])
            place = axes.get_yaxis_transform()
            axes.text(0, number - 0.3, shorten(label, 56), transform=place)
        axes.set_yticks([])
        axes.set_ylim(len(rows) - 0.5, -0.8)
        axes.set_xlabel(x)

    return Chart(title, 0.6 + 0.42 * len(rows), draw)


def _is_drawable(point: Point, log_x: bool) -> bool:
    return (point.x > SMALLEST_DRAWN or not log_x) and all(map(_is_in_range, point))


def _is_in_range(value: float) -> bool:
    """Whether the magnitude is below LARGEST_DRAWN; False for nan and infinity."""
    return abs(value) < LARGEST_DRAWN
