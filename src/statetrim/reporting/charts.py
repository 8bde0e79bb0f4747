"""Numbers -> drawings: line charts, intervals, bars, heat maps, maps of kept channels.

Drawings are narrow enough to be readable on a phone. A chart with nothing to draw is None; the
report shows all numbers in tables too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from math import ceil, floor, isfinite, log10

import torch
from torch import Tensor

from ..maths.formatting import shorten
from .drawing import Box, Curve, Dot, Drawing, Label, Line, Raster, Shape
from .theme import EMPTY, FULL, ON_EMPTY, ON_FULL, SERIES_COUNT, interpolate_colour

WIDTH = 420
LEFT, RIGHT, TOP, BOTTOM = 72, 20, 12, 46
PLOT_HEIGHT = 190  # pixels, between the axes
MAX_CELLS = 4096
LARGEST_DRAWN = 1e30  # larger magnitudes, infinities and NaN are not drawn

Formatter = Callable[[float], str]
number_text: Formatter = "{:g}".format


@dataclass(frozen=True)
class Point:
    """A value with an optional interval (low, high) and a label."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    label: str = ""


@dataclass(frozen=True)
class Series:
    """A line of a chart; `style` is one of `theme.STROKES`, or "" for the next unused colour."""

    name: str
    points: Sequence[Point]
    style: str = ""


@dataclass(frozen=True)
class Scale:
    """An axis: label, ticks, and its ends `low` and `high`, which are log10 if `log`."""

    name: str
    ticks: Sequence[float]
    low: float
    high: float
    log: bool
    formatter: Formatter

    def fraction(self, value: float) -> float:
        """Position of the value between both ends, clamped to 0..1."""
        position = _log(value) if self.log else value
        return min(1.0, max(0.0, (position - self.low) / (self.high - self.low)))


def line_chart(
    series: Sequence[Series],
    title: str,
    *,
    x: str,
    y: str,
    format_y: Formatter = number_text,
    log: bool = False,
    log_x: bool = False,
    from_zero: bool = False,
    marks: bool = False,
    reference: float | None = None,
) -> Drawing | None:
    """Lines over one pair of axes; None if no point can be drawn.

    `x` and `y` are axis labels; `log` makes the y axis logarithmic, `log_x` the x axis. `from_zero`
    includes 0 in a linear y axis. `marks` draws dots, intervals and labels of the points,
    `reference` a horizontal line at that value. Points that are not finite, or not positive on a
    logarithmic axis, are left out.
    """
    if reference is not None and not _is_in_range(reference):
        reference = None
    drawable = []
    x_values, y_values = list[float](), list[float]()
    for line in series:
        points = [point for point in line.points if _is_drawable(point, log, log_x)]
        if points:
            drawable.append(Series(line.name, points, line.style))
        for point in points:
            x_values.append(point.x)
            y_values += _y_values(point)
    if not drawable:
        return None
    if reference is not None:
        y_values.append(reference)
    x_scale = _x_scale(x, x_values, log_x, marks)
    y_scale = _y_scale(y, y_values, log, from_zero, format_y)
    styles = _assign_styles(drawable)
    legend = drawable if len(drawable) > 1 else []
    top = TOP + 18 * len(legend)

    def to_pixels(point_x: float, point_y: float) -> tuple[float, float]:
        pixel_x = LEFT + x_scale.fraction(point_x) * (WIDTH - LEFT - RIGHT)
        return pixel_x, top + PLOT_HEIGHT * (1 - y_scale.fraction(point_y))

    shapes: list[Shape] = list(_axis_shapes(x_scale, y_scale, top))
    for number, (line, style) in enumerate(zip(legend, styles, strict=False)):
        row = 9 + 18 * number
        shapes.append(Line(LEFT, row, LEFT + 26, row, style))
        shapes.append(Label(LEFT + 32, row + 4, shorten(line.name, 46)))
    if reference is not None:
        level = to_pixels(0.0, reference)[1]
        shapes.append(Line(LEFT, level, WIDTH - RIGHT, level, "reference"))
    for line, style in zip(drawable, styles, strict=True):
        shapes.append(Curve([to_pixels(p.x, p.y) for p in line.points], style))
        for point in line.points if marks else ():
            pixel_x, pixel_y = to_pixels(point.x, point.y)
            if point.low is not None and point.high is not None:
                low, high = to_pixels(point.x, point.low)[1], to_pixels(point.x, point.high)[1]
                shapes.append(Line(pixel_x, low, pixel_x, high, style.replace("series", "bar")))
            shapes.append(Dot(pixel_x, pixel_y, 4, "ink" if style == "original" else style))
            if point.label:
                near_right_edge = pixel_x > WIDTH - RIGHT - 60
                anchor, gap = ("end", -7) if near_right_edge else ("start", 7)
                shapes.append(Label(pixel_x + gap, pixel_y - 7, point.label, anchor, "faint"))
    return Drawing(WIDTH, top + PLOT_HEIGHT + BOTTOM, title, shapes)


def interval_chart(
    rows: Sequence[tuple[str, float, float, float]], title: str, x: str
) -> Drawing | None:
    """Rows of (label, estimate, low, high), each drawn below its label, on one scale with 0.

    Rows that are not finite are left out; None if none remains. `x` is the axis label.
    """
    rows = [row for row in rows if all(map(_is_in_range, row[1:]))]
    if not rows:
        return None
    _, _, lows, highs = zip(*rows, strict=True)
    ticks = _ticks(min(0.0, *lows), max(0.0, *highs))
    low, high = ticks[0], ticks[-1]
    bottom = TOP + 40 * len(rows)

    def to_pixels(value: float) -> float:
        return 24 + (value - low) / (high - low) * (WIDTH - 48)

    shapes: list[Shape] = []
    for value in ticks:
        shapes.append(Label(to_pixels(value), bottom + 15, number_text(value), "middle", "faint"))
    shapes.append(Label(WIDTH / 2, bottom + 34, x, "middle"))
    for number, (label, estimate, lower, upper) in enumerate(rows):
        y = TOP + 40 * number
        shapes.append(Label(4, y + 11, shorten(label, 56)))
        for value in ticks:
            style = "zero" if value == 0 else "grid"
            shapes.append(Line(to_pixels(value), y + 17, to_pixels(value), y + 33, style))
        shapes.append(Line(to_pixels(lower), y + 25, to_pixels(upper), y + 25, "bar-0"))
        shapes.append(Dot(to_pixels(estimate), y + 25, 4.5, "series-0"))
    return Drawing(WIDTH, bottom + 40, title, shapes)


def bar_chart(rows: Sequence[tuple[str, float, str]], title: str) -> Drawing | None:
    """Rows of (label, value, value text), a bar below each label; None if no value is positive.

    The first row is the original and has another colour.
    """
    largest = max((value for _, value, _ in rows), default=0.0)
    if largest <= 0:
        return None
    shapes: list[Shape] = []
    for number, (label, value, value_text) in enumerate(rows):
        y, width = 6 + 42 * number, (WIDTH - 120) * value / largest
        colour = "ink" if number == 0 else "series-0"
        shapes.append(Label(2, y + 11, shorten(label, 56)))
        shapes.append(Box(2, y + 17, max(1.0, width), 15, colour))
        shapes.append(Label(width + 10, y + 29, value_text))
    return Drawing(WIDTH, 10 + 42 * len(rows), title, shapes)


def heat_map(values: Tensor, names: Sequence[str], title: str, top: float) -> Drawing | None:
    """`values` [rows, columns] from 0 to `top`: the darker a cell, the larger its share of `top`.

    `names` label the rows. None if there are more than MAX_CELLS cells.
    """
    rows, columns = values.shape
    if rows * columns > MAX_CELLS:
        return None
    left, cell_width = 34, (WIDTH - 36) / columns
    cell_height = min(26.0, max(8.0, cell_width))
    shows_values = columns <= 12 and rows <= 48
    shapes: list[Shape] = []
    for row, cells in enumerate(values.tolist()):
        y = 16 + cell_height * row
        if rows <= 24 or row % ceil(rows / 24) == 0:
            shapes.append(Label(left - 6, y + cell_height / 2 + 4, names[row], "end", "faint"))
        for column, value in enumerate(cells):
            share = value / top if isfinite(value) and top > 0 else 0.0
            x = left + cell_width * column
            shapes.append(Box(x, y, cell_width - 1, cell_height - 1, interpolate_colour(share)))
            if shows_values:
                value_text = f"{100 * value:.0f}" if isfinite(value) else "?"
                colour = ON_FULL if share > 0.6 else ON_EMPTY
                shapes.append(
                    Label(x + cell_width / 2, y + cell_height / 2 + 4, value_text, "middle", colour)
                )
    for column in range(columns):
        if columns <= 16 or column % ceil(columns / 16) == 0:
            x = left + cell_width * (column + 0.5)
            shapes.append(Label(x, 11, str(column), "middle", "faint"))
    bottom = 16 + cell_height * rows
    shapes.append(Label(left, bottom + 19, "0%", colour="faint"))
    for step in range(8):
        colour = interpolate_colour(step / 7)
        shapes.append(Box(left + 26 + 14 * step, bottom + 8, 14, 13, colour))
    shapes.append(Label(left + 144, bottom + 19, f"{100 * top:.0f}%", colour="faint"))
    return Drawing(WIDTH, bottom + 28, title, shapes)


def channel_map(kept: Tensor, alt: str) -> Raster:
    """`kept` bool [heads, channels]: a band per head, dark where a channel is kept."""
    heads, channels = kept.shape
    repeat = min(8, max(2, channels // (3 * heads)))
    bands = kept.to(torch.uint8).repeat_interleave(repeat, 0)
    bands[repeat - 1 :: repeat] = 2  # a gap below each
    return Raster(bands, (EMPTY, FULL, None), alt)


def _axis_shapes(x_scale: Scale, y_scale: Scale, top: float) -> list[Shape]:
    shapes: list[Shape] = []
    for value in y_scale.ticks:
        y = top + PLOT_HEIGHT * (1 - y_scale.fraction(value))
        shapes.append(Line(LEFT, y, WIDTH - RIGHT, y, "grid"))
        shapes.append(Label(LEFT - 6, y + 4, y_scale.formatter(value), "end", "faint"))
    for value in x_scale.ticks:
        x = LEFT + x_scale.fraction(value) * (WIDTH - LEFT - RIGHT)
        shapes.append(Label(x, top + PLOT_HEIGHT + 18, x_scale.formatter(value), "middle", "faint"))
    shapes.append(Label((LEFT + WIDTH - RIGHT) / 2, top + PLOT_HEIGHT + 38, x_scale.name, "middle"))
    shapes.append(Label(12, top + PLOT_HEIGHT / 2, y_scale.name, "middle", rotated=True))
    return shapes


def _assign_styles(series: Sequence[Series]) -> list[str]:
    """A style per series: its own, or the next that no series requests."""
    requested = {line.style for line in series}
    names = [f"series-{number}" for number in range(SERIES_COUNT)]
    unused = cycle([name for name in names if name not in requested] or names[:1])
    return [line.style or next(unused) for line in series]


def _x_scale(name: str, values: Sequence[float], log: bool, marks: bool) -> Scale:
    low, high = min(values), max(values)
    if log:
        return _log_scale(name, values, number_text, max_ticks=5)
    if marks or low == high:  # space around the outermost marks
        padding = 0.04 * (high - low) or _padding(low)
        low, high = low - padding, high + padding
    ticks = [tick for tick in _ticks(low, high, max_ticks=5) if low <= tick <= high]
    return Scale(name, ticks, low, high, False, number_text)


def _y_scale(
    name: str, values: Sequence[float], log: bool, from_zero: bool, formatter: Formatter
) -> Scale:
    """An axis that ends at the ticks around `values`, and around 0 if `from_zero`."""
    if log:
        return _log_scale(name, values, formatter)
    values = [*values, 0.0] if from_zero else values
    ticks = _ticks(min(values), max(values))
    return Scale(name, ticks, ticks[0], ticks[-1], False, formatter)


def _log_scale(
    name: str, values: Sequence[float], formatter: Formatter, max_ticks: int = 8
) -> Scale:
    """An axis that ends at two or more powers of ten around the positive of `values`; evenly
    spaced, about `max_ticks` of them at most."""
    positive = [log10(value) for value in values if value > 0]
    first, last = floor(min(positive)), ceil(max(positive))
    last = max(last, first + 1)
    step = ceil((last - first) / max_ticks)
    ticks = [10.0**n for n in range(first, last + step, step)]
    return Scale(name, ticks, _log(ticks[0]), _log(ticks[-1]), True, formatter)


def _is_drawable(point: Point, log: bool, log_x: bool) -> bool:
    is_positive = (point.y > 0 or not log) and (point.x > 0 or not log_x)
    return is_positive and all(map(_is_in_range, (point.x, *_y_values(point))))


def _y_values(point: Point) -> list[float]:
    return [value for value in (point.y, point.low, point.high) if value is not None]


def _is_in_range(value: float) -> bool:
    """Whether the magnitude is below LARGEST_DRAWN; False for nan and infinity."""
    return abs(value) < LARGEST_DRAWN


def _log(value: float) -> float:
    """log10 of the value; below 1e-300, zero and negative values included, it is -300."""
    return log10(max(value, 1e-300))


def _ticks(low: float, high: float, max_ticks: int = 6) -> list[float]:
    """Round, evenly spaced numbers that enclose `low` and `high`."""
    if high - low <= max(1e-9 * max(abs(low), abs(high)), 1e-200):
        low, high = low - _padding(low), high + _padding(high)
    min_step = (high - low) / max_ticks
    power = 10.0 ** floor(log10(min_step))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= min_step * 0.999)
    first, last = floor(low / step + 1e-9), ceil(high / step - 1e-9)
    return [float(f"{n * step:.12g}") for n in range(first, last + 1)]


def _padding(value: float) -> float:
    """Space on either side of a single value."""
    return max(abs(value) * 0.1, 1e-9)
