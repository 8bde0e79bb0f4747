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
from .theme import EMPTY, FULL, ON_EMPTY, ON_FULL, SERIES, mixed

WIDTH = 420
LEFT, RIGHT, TOP, BOTTOM = 62, 20, 12, 46
PLOT = 190  # height of what lies between the axes
MOST_CELLS = 4096
LARGEST = 1e30  # what lies beyond, or is no number, is in the table and not in the picture

Format = Callable[[float], str]


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
class Axis:
    """A scale from values to pixels."""

    name: str
    ticks: Sequence[float]
    low: float
    high: float
    log: bool
    show: Format

    def share(self, value: float) -> float:
        """Where the value lies between both ends, 0 to 1."""
        place = _log(value) if self.log else value
        return min(1.0, max(0.0, (place - self.low) / (self.high - self.low)))


def line_chart(
    series: Sequence[Series],
    title: str,
    *,
    x: str,
    y: str,
    show_x: Format = lambda value: f"{value:g}",
    show_y: Format = lambda value: f"{value:g}",
    log: bool = False,
    log_x: bool = False,
    from_zero: bool = False,
    marks: bool = False,
    reference: float | None = None,
) -> Drawing | None:
    """Lines over one pair of axes; `log` is of y, `reference` a level that is drawn across."""
    kept = [
        Series(one.name, [p for p in one.points if _drawable(p, log, log_x)], one.style)
        for one in series
    ]
    kept = [one for one in kept if one.points]
    if not kept:
        return None
    across = _x_axis(x, [p.x for s in kept for p in s.points], log_x, marks, show_x)
    levels = [v for s in kept for p in s.points for v in (p.y, p.low, p.high) if v is not None]
    if reference is not None and _known(reference):
        levels.append(reference)
    up = _y_axis(y, levels, log, from_zero, show_y)
    styles = _styles(kept)
    legend = kept if len(kept) > 1 else []
    top = TOP + 18 * len(legend)

    def at(point_x: float, point_y: float) -> tuple[float, float]:
        return LEFT + across.share(point_x) * (WIDTH - LEFT - RIGHT), top + PLOT * (
            1 - up.share(point_y)
        )

    shapes: list[Shape] = list(_frame(across, up, top))
    for number, (one, style) in enumerate(zip(legend, styles, strict=False)):
        row = 9 + 18 * number
        shapes.append(Line(LEFT, row, LEFT + 26, row, style))
        shapes.append(Label(LEFT + 32, row + 4, _short(one.name, 46)))
    if reference is not None and _known(reference):
        level = at(0.0, reference)[1]
        shapes.append(Line(LEFT, level, WIDTH - RIGHT, level, "reference"))
    for one, style in zip(kept, styles, strict=True):
        shapes.append(Curve([at(p.x, p.y) for p in one.points], style))
        for p in one.points if marks else ():
            here = at(p.x, p.y)
            if p.low is not None and p.high is not None:
                bar = style.replace("series", "bar")
                shapes.append(Line(here[0], at(p.x, p.low)[1], here[0], at(p.x, p.high)[1], bar))
            shapes.append(Dot(*here, 4, _colour(style)))
            if p.label:
                right = here[0] > WIDTH - RIGHT - 60
                anchor, gap = ("end", -7) if right else ("start", 7)
                shapes.append(Label(here[0] + gap, here[1] - 7, p.label, anchor, "faint"))
    return Drawing(WIDTH, top + PLOT + BOTTOM, title, shapes)


def interval_chart(
    rows: Sequence[tuple[str, float, float, float]], title: str, x: str
) -> Drawing | None:
    """For each row its label, and below it the estimate between its bounds, on one scale."""
    rows = [row for row in rows if all(_known(value) for value in row[1:])]
    if not rows:
        return None
    ticks = _ticks(min(0.0, *(row[2] for row in rows)), max(0.0, *(row[3] for row in rows)))
    low, high = ticks[0], ticks[-1]
    bottom = TOP + 40 * len(rows)

    def at(value: float) -> float:
        return 24 + (value - low) / (high - low) * (WIDTH - 48)

    shapes: list[Shape] = [
        Label(at(value), bottom + 15, f"{value:g}", "middle", "faint") for value in ticks
    ]
    shapes.append(Label(WIDTH / 2, bottom + 34, x, "middle"))
    for number, (label, estimate, least, most) in enumerate(rows):
        y = TOP + 40 * number
        shapes.append(Label(4, y + 11, _short(label, 56)))
        for value in ticks:
            style = "zero" if value == 0 else "grid"
            shapes.append(Line(at(value), y + 17, at(value), y + 33, style))
        shapes.append(Line(at(least), y + 25, at(most), y + 25, "bar-0"))
        shapes.append(Dot(at(estimate), y + 25, 4.5, "series-0"))
    return Drawing(WIDTH, bottom + 40, title, shapes)


def bar_chart(rows: Sequence[tuple[str, float, str]], title: str) -> Drawing | None:
    """For each row a label, and below it a bar with its value in words; the original first."""
    most = max((value for _, value, _ in rows), default=0.0)
    if most <= 0:
        return None
    shapes: list[Shape] = []
    for number, (label, value, shown) in enumerate(rows):
        y, width = 6 + 42 * number, (WIDTH - 120) * value / most
        colour = "ink" if number == 0 else "series-0"
        shapes.append(Label(2, y + 11, _short(label, 56)))
        shapes.append(Box(2, y + 17, max(1.0, width), 15, colour))
        shapes.append(Label(width + 10, y + 29, shown))
    return Drawing(WIDTH, 10 + 42 * len(rows), title, shapes)


def heat_map(values: Tensor, names: Sequence[str], title: str, top: float) -> Drawing | None:
    """`values` [rows, columns] from 0 to `top`; the darker a cell the higher its share."""
    rows, columns = values.shape
    if rows * columns > MOST_CELLS:
        return None
    left, size = 34, (WIDTH - 36) / columns
    high = min(26.0, max(8.0, size))
    numbered = columns <= 12 and rows <= 48
    shapes: list[Shape] = []
    for row, cells in enumerate(values.tolist()):
        y = 16 + high * row
        if rows <= 24 or row % ceil(rows / 24) == 0:
            shapes.append(Label(left - 6, y + high / 2 + 4, names[row], "end", "faint"))
        for column, value in enumerate(cells):
            share = value / top if isfinite(value) and top > 0 else 0.0
            x = left + size * column
            shapes.append(Box(x, y, size - 1, high - 1, mixed(share)))
            if numbered:
                shown = f"{100 * value:.0f}" if isfinite(value) else "?"
                colour = ON_FULL if share > 0.6 else ON_EMPTY
                shapes.append(Label(x + size / 2, y + high / 2 + 4, shown, "middle", colour))
    for column in range(columns):
        if columns <= 16 or column % ceil(columns / 16) == 0:
            x = left + size * (column + 0.5)
            shapes.append(Label(x, 11, str(column), "middle", "faint"))
    bottom = 16 + high * rows
    shapes += _scale(left, bottom + 8, "0%", f"{100 * top:.0f}%", mixed)
    return Drawing(WIDTH, bottom + 28, title, shapes)


def channel_map(kept: Tensor, alt: str) -> Raster:
    """`kept` bool [heads, channels]: a band for each head, dark where a channel stays."""
    heads, channels = kept.shape
    repeat = min(8, max(2, channels // (3 * heads)))
    bands = kept.to(torch.uint8).repeat_interleave(repeat, 0)
    bands[repeat - 1 :: repeat] = 2  # a gap below each
    return Raster(bands, (EMPTY, FULL, None), alt)


def _frame(across: Axis, up: Axis, top: float) -> list[Shape]:
    """Grid, ticks and names of both axes."""
    shapes: list[Shape] = []
    for value in up.ticks:
        y = top + PLOT * (1 - up.share(value))
        shapes.append(Line(LEFT, y, WIDTH - RIGHT, y, "grid"))
        shapes.append(Label(LEFT - 6, y + 4, up.show(value), "end", "faint"))
    for value in across.ticks:
        x = LEFT + across.share(value) * (WIDTH - LEFT - RIGHT)
        shapes.append(Label(x, top + PLOT + 18, across.show(value), "middle", "faint"))
    shapes.append(Label((LEFT + WIDTH - RIGHT) / 2, top + PLOT + 38, across.name, "middle"))
    shapes.append(Label(12, top + PLOT / 2, up.name, "middle", turned=True))
    return shapes


def _scale(
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


def _styles(series: Sequence[Series]) -> list[str]:
    """Every series that asks for no style takes the next colour that nobody asked for."""
    asked = {one.style for one in series}
    free = [f"series-{n}" for n in range(SERIES) if f"series-{n}" not in asked] or ["series-0"]
    count, found = 0, []
    for one in series:
        found.append(one.style or free[count % len(free)])
        count += not one.style
    return found


def _colour(style: str) -> str:
    return "ink" if style == "original" else style


def _x_axis(name: str, values: Sequence[float], log: bool, marks: bool, show: Format) -> Axis:
    low, high = min(values), max(values)
    if log:
        decades = _decades(low, high, most=5)
        return Axis(name, decades, _log(decades[0]), _log(decades[-1]), True, show)
    if marks or low == high:  # room around the outermost marks
        room = 0.04 * (high - low) or _room(low)
        low, high = low - room, high + room
    ticks = [tick for tick in _ticks(low, high, most=5) if low <= tick <= high]
    return Axis(name, ticks, low, high, False, show)


def _y_axis(name: str, values: Sequence[float], log: bool, from_zero: bool, show: Format) -> Axis:
    if log:
        values = [value for value in values if value > 0]
        ticks = _decades(min(values), max(values))
        return Axis(name, ticks, _log(ticks[0]), _log(ticks[-1]), True, show)
    values = [*values, 0.0] if from_zero else values
    ticks = _ticks(min(values), max(values))
    return Axis(name, ticks, ticks[0], ticks[-1], False, show)


def _drawable(point: Point, log: bool, log_x: bool) -> bool:
    known = [v for v in (point.x, point.y, point.low, point.high) if v is not None]
    positive = (point.y > 0 or not log) and (point.x > 0 or not log_x)
    return all(map(_known, known)) and positive


def _known(value: float) -> bool:
    return abs(value) < LARGEST


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _log(value: float) -> float:
    return log10(max(value, 1e-300))


def _ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers from at or below `low` to at or above `high`."""
    if high - low <= max(1e-9 * max(abs(low), abs(high)), 1e-200):
        low, high = low - _room(low), high + _room(high)
    rough = (high - low) / most
    power = 10.0 ** floor(log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)
    first, last = floor(low / step + 1e-9), ceil(high / step - 1e-9)
    return [float(f"{n * step:.12g}") for n in range(first, last + 1)]


def _room(value: float) -> float:
    """What to leave on either side of a single value."""
    return max(abs(value) * 0.1, 1e-9)


def _decades(low: float, high: float, most: int = 8) -> list[float]:
    first, last = floor(log10(low)), ceil(log10(high))
    last = max(last, first + 1)
    step = ceil((last - first) / most)
    return [10.0**n for n in range(first, last + step, step)]
