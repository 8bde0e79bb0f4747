"""Charts as inline SVG that takes its colours from the page, so that they follow light and dark.

Narrow enough to stay readable on a phone. Each has a title that says in words what it shows.
"""

import base64
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, isfinite, log10

from torch import Tensor

WIDTH = 420
LEFT, RIGHT, TOP, BOTTOM = 62, 20, 12, 46
STYLES = 4  # of lines, in report.css
KEPT_COLOUR = bytes((0x2F, 0x86, 0xC9))  # visible on a light and on a dark ground
MOST_CELLS = 4096
LARGEST = 1e30  # what lies beyond, or is no number, is in the table and not in the picture

Format = Callable[[float], str]


@dataclass(frozen=True)
class Point:
    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Series:
    name: str
    points: Sequence[Point]


def line_chart(
    series: Sequence[Series],
    title: str,
    *,
    x: str,
    y: str,
    show_x: Format = lambda value: f"{value:g}",
    show_y: Format = lambda value: f"{value:g}",
    log: bool = False,
    from_zero: bool = False,
    marks: bool = False,
) -> str:
    """Lines over one pair of axes; `log` is of y. Points that are not finite are left out."""
    kept = [Series(s.name, [p for p in s.points if _drawable(p, log)]) for s in series]
    kept = [s for s in kept if s.points]
    if not kept:
        return ""
    xs = [p.x for s in kept for p in s.points]
    ys = [v for s in kept for p in s.points for v in (p.y, p.low, p.high) if v is not None]
    if log:
        ys = [v for v in ys if v > 0]
        y_ticks = _decades(min(ys), max(ys))
    else:
        y_ticks = _ticks(0.0 if from_zero else min(ys), max(ys))
    x_low, x_high = min(xs), max(xs)
    if marks or x_low == x_high:  # room around the outermost marks
        room = 0.04 * (x_high - x_low) or _room(x_low)
        x_low, x_high = x_low - room, x_high + room
    x_ticks = [tick for tick in _ticks(x_low, x_high, most=5) if x_low <= tick <= x_high]
    legend = kept if len(kept) > 1 else []
    top = TOP + 18 * len(legend)
    height = top + 190 + BOTTOM
    place = (lambda v: log10(max(v, 1e-300))) if log else (lambda v: v)
    y_low, y_high = place(y_ticks[0]), place(y_ticks[-1])

    def at_x(value: float) -> float:
        return LEFT + (value - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT)

    def at_y(value: float) -> float:
        share = (place(value) - y_low) / (y_high - y_low)
        return top + 190 * (1 - min(1.0, max(0.0, share)))

    parts = []
    for value in y_ticks:
        parts.append(_line(LEFT, at_y(value), WIDTH - RIGHT, at_y(value), "grid"))
        parts.append(_text(LEFT - 6, at_y(value) + 4, show_y(value), "faint end"))
    for value in x_ticks:
        parts.append(_text(at_x(value), top + 208, show_x(value), "faint middle"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, top + 228, x, "middle"))
    parts.append(
        f'<text class="middle" transform="translate(12 {top + 95}) rotate(-90)">{escape(y)}</text>'
    )
    for number, one in enumerate(legend):
        row = 9 + 18 * number
        parts.append(_line(LEFT, row, LEFT + 26, row, _stroke(number)))
        parts.append(_text(LEFT + 32, row + 4, _short(one.name, 46)))
    for number, one in enumerate(kept):
        path = " ".join(f"{at_x(p.x):.1f},{at_y(p.y):.1f}" for p in one.points)
        parts.append(f'<polyline class="{_stroke(number)}" points="{path}"/>')
        for p in one.points if marks else ():
            if p.low is not None and p.high is not None:
                style = f"bar solid s{number % STYLES}"
                parts.append(_line(at_x(p.x), at_y(p.low), at_x(p.x), at_y(p.high), style))
            parts.append(
                f'<circle class="f{number % STYLES}" cx="{at_x(p.x):.1f}" cy="{at_y(p.y):.1f}" '
                f'r="4"/>'
            )
    return _svg(height, title, parts)


def interval_chart(rows: Sequence[tuple[str, float, float, float]], title: str, x: str) -> str:
    """For each row its label, and below it the estimate between its bounds, on one scale."""
    rows = [row for row in rows if all(abs(value) < LARGEST for value in row[1:])]
    if not rows:
        return ""
    ticks = _ticks(min(0.0, *(row[2] for row in rows)), max(0.0, *(row[3] for row in rows)))
    low, high = ticks[0], ticks[-1]
    bottom = TOP + 40 * len(rows)

    def at(value: float) -> float:
        return 24 + (value - low) / (high - low) * (WIDTH - 48)

    parts = [_text(at(value), bottom + 15, f"{value:g}", "faint middle") for value in ticks]
    parts.append(_text(WIDTH / 2, bottom + 34, x, "middle"))
    for number, (label, estimate, least, most) in enumerate(rows):
        y = TOP + 40 * number
        parts.append(_text(4, y + 11, _short(label, 56)))
        for value in ticks:
            parts.append(
                _line(at(value), y + 17, at(value), y + 33, "zero" if value == 0 else "grid")
            )
        parts.append(_line(at(least), y + 25, at(most), y + 25, "bar s0"))
        parts.append(f'<circle class="f0" cx="{at(estimate):.1f}" cy="{y + 25}" r="4.5"/>')
    return _svg(bottom + 40, title, parts)


def bar_chart(rows: Sequence[tuple[str, float, str]], title: str) -> str:
    """For each row a label, and below it a bar with its value in words."""
    most = max((value for _, value, _ in rows), default=0.0)
    if most <= 0:
        return ""
    parts = []
    for number, (label, value, shown) in enumerate(rows):
        y, width = 6 + 42 * number, (WIDTH - 120) * value / most
        parts.append(_text(2, y + 11, _short(label, 56)))
        parts.append(
            f'<rect class="f{min(number, 1)}" x="2" y="{y + 17}" width="{max(1.0, width):.1f}" '
            f'height="15" rx="2"/>'
        )
        parts.append(_text(width + 10, y + 29, shown))
    return _svg(10 + 42 * len(rows), title, parts)


def heat_map(values: Tensor, names: Sequence[str], title: str, top: float) -> str:
    """`values` [rows, columns] from 0 to `top`; the stronger the colour the higher the share."""
    rows, columns = values.shape
    if rows * columns > MOST_CELLS:
        return ""
    left, size = 34, (WIDTH - 36) / columns
    high = min(26.0, max(8.0, size))
    numbered = columns <= 12 and rows <= 48
    parts = []
    for row, cells in enumerate(values.tolist()):
        y = 16 + high * row
        if rows <= 24 or row % ceil(rows / 24) == 0:
            parts.append(_text(left - 6, y + high / 2 + 4, names[row], "faint end"))
        for column, value in enumerate(cells):
            opacity = 0.45 * min(1.0, value / top) if isfinite(value) and top > 0 else 0.0
            box = (
                f'x="{left + size * column:.1f}" y="{y:.1f}" '
                f'width="{size - 1:.1f}" height="{high - 1:.1f}"'
            )
            parts.append(f'<rect class="cell" {box} fill-opacity="{0.03 + opacity:.2f}"/>')
            if numbered:
                shown = f"{100 * value:.0f}" if isfinite(value) else "?"
                middle = left + size * (column + 0.5)
                parts.append(_text(middle, y + high / 2 + 3.5, shown, "on-cell middle"))
    for column in range(columns):
        if columns <= 16 or column % ceil(columns / 16) == 0:
            parts.append(_text(left + size * (column + 0.5), 11, str(column), "faint middle"))
    return _svg(18 + high * rows, title, parts)


def bitmap(rows: Tensor, alt: str) -> str:
    """`rows` bool [heads, channels] as an image: a band for each head, coloured where true."""
    heads, channels = rows.shape
    repeat = min(8, max(2, channels // (3 * heads)))
    empty = b"\0" * (1 + (channels + 7) // 8)
    lines = []
    for row in rows.tolist():
        bits = "".join("1" if cell else "0" for cell in row).ljust(8 * (len(empty) - 1), "0")
        band = b"\0" + int(bits, 2).to_bytes(len(empty) - 1, "big")
        lines.append(band * (repeat - 1) + empty)
    height = heads * repeat
    header = struct.pack(">IIBBBBB", channels, height, 1, 3, 0, 0, 0)  # one bit, by palette
    png = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in (
            (b"IHDR", header),
            (b"PLTE", bytes(3) + KEPT_COLOUR),
            (b"tRNS", b"\0\xff"),
            (b"IDAT", zlib.compress(b"".join(lines), 9)),
            (b"IEND", b""),
        )
    )
    source = base64.b64encode(png).decode()
    return (
        f'<img alt="{escape(alt, quote=True)}" width="{channels}" height="{height}" '
        f'src="data:image/png;base64,{source}">'
    )


def _drawable(point: Point, log: bool) -> bool:
    known = [v for v in (point.x, point.y, point.low, point.high) if v is not None]
    return all(abs(v) < LARGEST for v in known) and (point.y > 0 or not log)


def _svg(height: float, title: str, parts: Sequence[str]) -> str:
    name = escape(title, quote=True)
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{name}">'
        f"{''.join(parts)}</svg>"
    )


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line class="{style}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, style: str = "") -> str:
    kind = f' class="{style}"' if style else ""
    return f'<text{kind} x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def _stroke(number: int) -> str:
    return f"curve s{number % STYLES}"


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


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


def _decades(low: float, high: float) -> list[float]:
    first, last = floor(log10(low)), ceil(log10(high))
    last = max(last, first + 1)
    step = ceil((last - first) / 8)
    return [10.0**n for n in range(first, last + step, step)]
