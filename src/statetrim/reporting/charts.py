"""Numbers -> drawings: lines, intervals, bars, heat maps, kept channels.

Narrow enough to stay readable on a phone. What cannot be drawn gives None; its numbers stand in a
table beside it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, floor, isfinite, log10

import torch
from torch import Tensor

from .drawing import Box, Curve, Dot, Drawing, Label, Line, Raster, Shape
from .theme import EMPTY, FULL, ON_EMPTY, ON_FULL, SERIES_COUNT, interpolate_colour

WIDTH = 420
LEFT, RIGHT, TOP, BOTTOM = 62, 20, 12, 46
PLOT_HEIGHT = 190  # height of what lies between the axes
MAX_CELLS = 4096
LARGEST_DRAWN = 1e30  # what lies beyond, or is no number, is in the table and not in the picture

Formatter = Callable[[float], str]


@dataclass(frozen=True)
class Point:
    x: float
    y: float
    low: float | None = None
    high: float | None = None
    label: str = ""


@dataclass(frozen=True)
class Series:
    """`style` names a stroke of the theme; without one the series takes the next colour."""

    name: str
    points: Sequence[Point]
    style: str = ""


@dataclass(frozen=True)
class Scale:
    """A scale from values to pixels."""

    name: str
    ticks: Sequence[float]
    low: float
    high: float
    log: bool
    formatter: Formatter

    def fraction(self, value: float) -> float:
        """Where the value lies between both ends, 0 to 1."""
        position = _log(value) if self.log else value
        return min(1.0, max(0.0, (position - self.low) / (self.high - self.low)))


def line_chart(
    series: Sequence[Series],
    title: str,
    *,
    x: str,
    y: str,
    format_x: Formatter = lambda value: f"{value:g}",
    format_y: Formatter = lambda value: f"{value:g}",
    log: bool = False,
    log_x: bool = False,
    from_zero: bool = False,
    marks: bool = False,
    reference: float | None = None,
) -> Drawing | None:
    """Lines over one pair of axes; `log` is of y, `reference` a level that is drawn across."""
    drawable = [
        Series(line.name, [p for p in line.points if _is_drawable(p, log, log_x)], line.style)
        for line in series
    ]
    drawable = [line for line in drawable if line.points]
    if not drawable:
        return None
    x_scale = _x_scale(x, [p.x for s in drawable for p in s.points], log_x, marks, format_x)
    y_values = [
        v for s in drawable for p in s.points for v in (p.y, p.low, p.high) if v is not None
    ]
    if reference is not None and _is_in_range(reference):
        y_values.append(reference)
    y_scale = _y_scale(y, y_values, log, from_zero, format_y)
    styles = _assign_styles(drawable)
    legend = drawable if len(drawable) > 1 else []
    top = TOP + 18 * len(legend)

    def to_pixels(point_x: float, point_y: float) -> tuple[float, float]:
        return LEFT + x_scale.fraction(point_x) * (WIDTH - LEFT - RIGHT), top + PLOT_HEIGHT * (
            1 - y_scale.fraction(point_y)
        )

    shapes: list[Shape] = list(_axis_shapes(x_scale, y_scale, top))
    for number, (line, style) in enumerate(zip(legend, styles, strict=False)):
        row = 9 + 18 * number
        shapes.append(Line(LEFT, row, LEFT + 26, row, style))
        shapes.append(Label(LEFT + 32, row + 4, _shortened(line.name, 46)))
    if reference is not None and _is_in_range(reference):
        level = to_pixels(0.0, reference)[1]
        shapes.append(Line(LEFT, level, WIDTH - RIGHT, level, "reference"))
    for line, style in zip(drawable, styles, strict=True):
        shapes.append(Curve([to_pixels(p.x, p.y) for p in line.points], style))
        for p in line.points if marks else ():
            centre = to_pixels(p.x, p.y)
            if p.low is not None and p.high is not None:
                bar = style.replace("series", "bar")
                shapes.append(
                    Line(
                        centre[0],
                        to_pixels(p.x, p.low)[1],
                        centre[0],
                        to_pixels(p.x, p.high)[1],
                        bar,
                    )
                )
            shapes.append(Dot(*centre, 4, _stroke_colour(style)))
            if p.label:
                near_right_edge = centre[0] > WIDTH - RIGHT - 60
                anchor, gap = ("end", -7) if near_right_edge else ("start", 7)
                shapes.append(Label(centre[0] + gap, centre[1] - 7, p.label, anchor, "faint"))
    return Drawing(WIDTH, top + PLOT_HEIGHT + BOTTOM, title, shapes)


def interval_chart(
    rows: Sequence[tuple[str, float, float, float]], title: str, x: str
) -> Drawing | None:
    """For each row its label, and below it the estimate between its bounds, on one scale."""
    rows = [row for row in rows if all(_is_in_range(value) for value in row[1:])]
    if not rows:
        return None
    ticks = _ticks(min(0.0, *(row[2] for row in rows)), max(0.0, *(row[3] for row in rows)))
    low, high = ticks[0], ticks[-1]
    bottom = TOP + 40 * len(rows)

    def to_pixels(value: float) -> float:
        return 24 + (value - low) / (high - low) * (WIDTH - 48)

    shapes: list[Shape] = [
        Label(to_pixels(value), bottom + 15, f"{value:g}", "middle", "faint") for value in ticks
    ]
    shapes.append(Label(WIDTH / 2, bottom + 34, x, "middle"))
    for number, (label, estimate, lower, upper) in enumerate(rows):
        y = TOP + 40 * number
        shapes.append(Label(4, y + 11, _shortened(label, 56)))
        for value in ticks:
            style = "zero" if value == 0 else "grid"
            shapes.append(Line(to_pixels(value), y + 17, to_pixels(value), y + 33, style))
        shapes.append(Line(to_pixels(lower), y + 25, to_pixels(upper), y + 25, "bar-0"))
        shapes.append(Dot(to_pixels(estimate), y + 25, 4.5, "series-0"))
    return Drawing(WIDTH, bottom + 40, title, shapes)


def bar_chart(rows: Sequence[tuple[str, float, str]], title: str) -> Drawing | None:
    """For each row a label, and below it a bar with its value in words; the original first."""
    largest = max((value for _, value, _ in rows), default=0.0)
    if largest <= 0:
        return None
    shapes: list[Shape] = []
    for number, (label, value, value_text) in enumerate(rows):
        y, width = 6 + 42 * number, (WIDTH - 120) * value / largest
        colour = "ink" if number == 0 else "series-0"
        shapes.append(Label(2, y + 11, _shortened(label, 56)))
        shapes.append(Box(2, y + 17, max(1.0, width), 15, colour))
        shapes.append(Label(width + 10, y + 29, value_text))
    return Drawing(WIDTH, 10 + 42 * len(rows), title, shapes)


def heat_map(values: Tensor, names: Sequence[str], title: str, top: float) -> Drawing | None:
    """`values` [rows, columns] from 0 to `top`; the darker a cell the higher its share."""
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
    shapes += _colour_legend(left, bottom + 8, "0%", f"{100 * top:.0f}%", interpolate_colour)
    return Drawing(WIDTH, bottom + 28, title, shapes)


def channel_map(kept: Tensor, alt: str) -> Raster:
    """`kept` bool [heads, channels]: a band for each head, dark where a channel stays."""
    heads, channels = kept.shape
    repeat = min(8, max(2, channels // (3 * heads)))
    bands = kept.to(torch.uint8).repeat_interleave(repeat, 0)
    bands[repeat - 1 :: repeat] = 2  # a gap below each
    return Raster(bands, (EMPTY, FULL, None), alt)


def _axis_shapes(x_scale: Scale, y_scale: Scale, top: float) -> list[Shape]:
    """Grid, ticks and names of both axes."""
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


def _colour_legend(
    x: float, y: float, first: str, last: str, colour: Callable[[float], str]
) -> list[Shape]:
    """What the colours of cells mean."""
    steps, width = 8, 14
    shapes: list[Shape] = [Label(x, y + 11, first, colour="faint")]
    x += 9 * len(first) + 8
    for step in range(steps):
        shapes.append(Box(x + width * step, y, width, 13, colour(step / (steps - 1))))
    shapes.append(Label(x + width * steps + 6, y + 11, last, colour="faint"))
    return shapes


def _assign_styles(series: Sequence[Series]) -> list[str]:
    """Every series that asks for no style takes the next colour that nobody asked for."""
    requested = {line.style for line in series}
    unused = [f"series-{n}" for n in range(SERIES_COUNT) if f"series-{n}" not in requested] or [
        "series-0"
    ]
    taken, styles = 0, []
    for line in series:
        styles.append(line.style or unused[taken % len(unused)])
        taken += not line.style
    return styles


def _stroke_colour(style: str) -> str:
    return "ink" if style == "original" else style


def _x_scale(
    name: str, values: Sequence[float], log: bool, marks: bool, formatter: Formatter
) -> Scale:
    low, high = min(values), max(values)
    if log:
        decades = _decades(low, high, max_ticks=5)
        return Scale(name, decades, _log(decades[0]), _log(decades[-1]), True, formatter)
    if marks or low == high:  # room around the outermost marks
        padding = 0.04 * (high - low) or _padding(low)
        low, high = low - padding, high + padding
    ticks = [tick for tick in _ticks(low, high, max_ticks=5) if low <= tick <= high]
    return Scale(name, ticks, low, high, False, formatter)


def _y_scale(
    name: str, values: Sequence[float], log: bool, from_zero: bool, formatter: Formatter
) -> Scale:
    if log:
        values = [value for value in values if value > 0]
        ticks = _decades(min(values), max(values))
        return Scale(name, ticks, _log(ticks[0]), _log(ticks[-1]), True, formatter)
    values = [*values, 0.0] if from_zero else values
    ticks = _ticks(min(values), max(values))
    return Scale(name, ticks, ticks[0], ticks[-1], False, formatter)


def _is_drawable(point: Point, log: bool, log_x: bool) -> bool:
    values = [v for v in (point.x, point.y, point.low, point.high) if v is not None]
    positive = (point.y > 0 or not log) and (point.x > 0 or not log_x)
    return all(map(_is_in_range, values)) and positive


def _is_in_range(value: float) -> bool:
    return abs(value) < LARGEST_DRAWN


def _shortened(text: str, max_length: int) -> str:
    return text if len(text) <= max_length else f"{text[: max_length - 1]}…"


def _log(value: float) -> float:
    return log10(max(value, 1e-300))


def _ticks(low: float, high: float, max_ticks: int = 6) -> list[float]:
    """Round numbers from at or below `low` to at or above `high`."""
    if high - low <= max(1e-9 * max(abs(low), abs(high)), 1e-200):
        low, high = low - _padding(low), high + _padding(high)
    min_step = (high - low) / max_ticks
    power = 10.0 ** floor(log10(min_step))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= min_step * 0.999)
    first, last = floor(low / step + 1e-9), ceil(high / step - 1e-9)
    return [float(f"{n * step:.12g}") for n in range(first, last + 1)]


def _padding(value: float) -> float:
    """What to leave on either side of a single value."""
    return max(abs(value) * 0.1, 1e-9)


def _decades(low: float, high: float, max_ticks: int = 8) -> list[float]:
    first, last = floor(log10(low)), ceil(log10(high))
    last = max(last, first + 1)
    step = ceil((last - first) / max_ticks)
    return [10.0**n for n in range(first, last + step, step)]
