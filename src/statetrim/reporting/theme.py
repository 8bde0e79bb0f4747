"""Colours and strokes of the page, in its light and dark scheme, and of figure files.

Cells of heat maps and channel maps have one colour scale in both schemes: dark is full or kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass

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
SERIES_COUNT = 7

EMPTY, FULL = (0xE9, 0xF0, 0xF8), (0x0B, 0x3C, 0x70)
"""RGB at both ends of the scale of shares, 0 and 1; kept channels have the second."""
DIVERGING = (
    (0x05, 0x30, 0x61),
    (0x43, 0x93, 0xC3),
    (0xF7, 0xF7, 0xF7),
    (0xD6, 0x60, 0x4D),
    (0x67, 0x00, 0x1F),
)
ON_EMPTY, ON_FULL = "#1b2430", "#ffffff"  # text on a cell, by its colour


@dataclass(frozen=True)
class Stroke:
    """A line: name of its colour in LIGHT and DARK, width and dash lengths in pixels."""

    colour: str
    width: float = 1.0
    dash: tuple[float, ...] = ()


STROKES = {
    "grid": Stroke("line"),
    "zero": Stroke("faint", dash=(3, 3)),
    "original": Stroke("ink", 1.8),
    "reference": Stroke("ink", 1.2, (5, 4)),
    "separator": Stroke("ink"),
}
_DASHES = ((), (7, 3), (2, 3), (8, 3, 2, 3), (12, 3), (4, 4), (9, 3, 2, 3, 2, 3))
for _number, _dash in enumerate(_DASHES):
    STROKES[f"series-{_number}"] = Stroke(f"series-{_number}", 2, _dash)
for _number in range(SERIES_COUNT):
    STROKES[f"bar-{_number}"] = Stroke(f"series-{_number}", 2.5)


def interpolate_colour(
    fraction: float, stops: Sequence[tuple[int, int, int]] = (EMPTY, FULL)
) -> str:
    """Colour "#rrggbb" at `fraction` (clamped to 0..1) of the way along the `stops`."""
    position = min(1.0, max(0.0, fraction)) * (len(stops) - 1)
    first = min(int(position), len(stops) - 2)
    weight = position - first
    colour = "#"
    for a, b in zip(stops[first], stops[first + 1], strict=True):
        colour += f"{round((1 - weight) * a + weight * b):02x}"
    return colour
