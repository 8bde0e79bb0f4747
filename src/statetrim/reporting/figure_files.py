"""Sheets as figure files: SVG by the page's template, PNG by matplotlib, with equal shapes."""

import textwrap
from collections.abc import Mapping
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

from ..errors import StatetrimError
from ..storage.atomic import atomic_write
from ..storage.json_file import write_text
from .drawing import Box, Curve, Dot, Drawing, Label, Line, Raster, Shape, Sheet
from .html import standalone_svg
from .theme import LIGHT, STROKES

try:
    import matplotlib
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import imread
    from matplotlib.patches import Circle, Rectangle
except ImportError:
    raise StatetrimError('figures need matplotlib: pip install "statetrim[report]"') from None

SUFFIXES = ("png", "svg")
DPI, SCALE = 100, 2  # drawings are laid out at 100 pixels per inch; a PNG has twice as many
FONT_SIZE = 13  # pixels, as in the page
MARGIN, TITLE_HEIGHT = 18, 26
CHARACTER_WIDTH = 6.9  # pixels, about, of a caption's characters


def save_all(sheets: Mapping[str, Sheet], directory: str | Path) -> list[Path]:
    """Write every sheet to `directory` under its name; returns the paths of all files."""
    paths: list[Path] = []
    for name, sheet in sheets.items():
        paths += save(sheet, Path(directory) / name)
    return paths


def save(sheet: Sheet, path: str | Path) -> list[Path]:
    """Write PATH.png and PATH.svg, replacing existing files, and return their paths.

    Missing directories are created; equal sheets give equal bytes.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    drawing = lay_out(sheet)
    files = [path.with_name(f"{path.name}.{suffix}") for suffix in SUFFIXES]
    with atomic_write(files[0]) as written:
        _save_png(drawing, written)
    write_text(files[1], standalone_svg(drawing))
    return files


def lay_out(sheet: Sheet) -> Drawing:
    """One drawing: panels side by side, each below its title, and the caption at the bottom."""
    shapes: list[Shape] = []
    x, bottom = float(MARGIN), 0.0
    for panel in sheet.panels:
        shapes.append(Label(x, MARGIN + 8, panel.title))
        shapes += [_translated(shape, x, MARGIN + TITLE_HEIGHT) for shape in panel.shapes]
        x += panel.width + MARGIN
        bottom = max(bottom, MARGIN + TITLE_HEIGHT + panel.height)
    width = x
    bottom += MARGIN
    for line in textwrap.wrap(sheet.caption, int((width - 2 * MARGIN) / CHARACTER_WIDTH)):
        shapes.append(Label(MARGIN, bottom + 8, line, colour="faint"))
        bottom += 18
    title = ". ".join(panel.title for panel in sheet.panels)
    return Drawing(width, bottom + MARGIN, title, shapes)


def _translated(shape: Shape, dx: float, dy: float) -> Shape:
    if isinstance(shape, Line):
        return Line(shape.x1 + dx, shape.y1 + dy, shape.x2 + dx, shape.y2 + dy, shape.style)
    if isinstance(shape, Curve):
        return Curve([(a + dx, b + dy) for a, b in shape.points], shape.style)
    return replace(shape, x=shape.x + dx, y=shape.y + dy)


def _save_png(drawing: Drawing, path: Path) -> None:
    """Write the drawing to `path` as PNG with SCALE pixels per pixel of the drawing; without
    pyplot, which would keep global state."""
    style: dict[Any, Any] = {
        "font.family": "sans-serif",
        "font.size": FONT_SIZE * 72 / DPI,
        "figure.constrained_layout.use": False,  # the user's matplotlibrc may set it
    }
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(drawing.width / DPI, drawing.height / DPI))
        axes = figure.add_axes((0, 0, 1, 1))
        axes.axis("off")
        for shape in drawing.shapes:
            _draw(axes, shape)
        axes.set_xlim(0, drawing.width)
        axes.set_ylim(drawing.height, 0)
        figure.savefig(path, dpi=DPI * SCALE, metadata={"Software": None})


def _draw(axes: Axes, shape: Shape) -> None:
    if isinstance(shape, Line):
        axes.plot([shape.x1, shape.x2], [shape.y1, shape.y2], **_line_options(shape.style))
    elif isinstance(shape, Curve):
        axes.plot(*zip(*shape.points, strict=True), **_line_options(shape.style))
    elif isinstance(shape, Raster):
        extent = (shape.x, shape.x + shape.width, shape.y + shape.height, shape.y)
        pixels = imread(BytesIO(shape.png), format="png")
        axes.imshow(pixels, extent=extent, aspect="auto", interpolation="nearest")
    else:
        place, colour = (shape.x, shape.y), LIGHT.get(shape.colour, shape.colour)
        if isinstance(shape, Dot):
            axes.add_patch(Circle(place, shape.radius, color=colour, lw=0, zorder=3))
        elif isinstance(shape, Box):
            axes.add_patch(Rectangle(place, shape.width, shape.height, color=colour, lw=0))
        else:
            axes.text(
                *place,
                shape.text,
                ha={"start": "left", "middle": "center", "end": "right"}[shape.anchor],
                va="baseline",
                rotation=90 if shape.rotated else 0,
                rotation_mode="anchor",
                color=colour,
                parse_math=False,
            )


def _line_options(style: str) -> dict[str, Any]:
    """Keyword arguments of `Axes.plot` for a stroke of the theme."""
    stroke = STROKES[style]
    options: dict[str, Any] = {"color": LIGHT[stroke.colour], "linewidth": stroke.width * 72 / DPI}
    if stroke.dash:
        options["linestyle"] = (0, tuple(length / stroke.width for length in stroke.dash))
        options["dash_capstyle"] = "butt"
    return options
