"""Drawings as lists of shapes, which the page, SVG files and PNG files all render."""

import base64
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


class Part:
    """A part of a drawing or of a page; templates choose by its kind, such as "line"."""

    @property
    def kind(self) -> str:
        return type(self).__name__.lower()


@dataclass(frozen=True)
class Line(Part):
    """A straight line; `style` is one of `theme.STROKES`."""

    x1: float
    y1: float
    x2: float
    y2: float
    style: str


@dataclass(frozen=True)
class Curve(Part):
    """A polyline; `style` is one of `theme.STROKES`."""

    points: Sequence[tuple[float, float]]
    style: str


@dataclass(frozen=True)
class Dot(Part):
    """A filled circle; `colour` is a name of the theme."""

    x: float
    y: float
    radius: float
    colour: str


@dataclass(frozen=True)
class Box(Part):
    """A filled rectangle; `colour` is a name of the theme, or "#rrggbb"."""

    x: float
    y: float
    width: float
    height: float
    colour: str


@dataclass(frozen=True)
class Label(Part):
    """Text whose baseline starts, is centred or ends at (x, y); `rotated` text reads upwards."""

    x: float
    y: float
    text: str
    anchor: str = "start"
    colour: str = "ink"
    rotated: bool = False


@dataclass(frozen=True)
class Raster(Part):
    """Pixels as indices into a palette of RGB colours; None is transparent."""

    indices: Tensor  # uint8 [height, width]
    colours: Sequence[tuple[int, ...] | None]
    alt: str = ""
    x: float = 0.0
    y: float = 0.0
    width: float = 0.0  # in pixels, if it is part of a drawing
    height: float = 0.0

    @property
    def png(self) -> bytes:
        """A palette PNG with one byte per pixel."""
        height, width = self.indices.shape
        header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
        rows = b"".join(b"\0" + bytes(row) for row in self.indices.tolist())
        palette, alpha = bytearray(), bytearray()
        for colour in self.colours:
            palette += bytes(colour or (0, 0, 0))
            alpha.append(0 if colour is None else 255)
        chunks = (
            (b"IHDR", header),
            (b"PLTE", bytes(palette)),
            (b"tRNS", bytes(alpha)),
            (b"IDAT", zlib.compress(rows, 9)),
            (b"IEND", b""),
        )
        png = b"\x89PNG\r\n\x1a\n"
        for kind, body in chunks:
            checksum = zlib.crc32(kind + body)
            png += struct.pack(">I", len(body)) + kind + body + struct.pack(">I", checksum)
        return png

    @property
    def data_uri(self) -> str:
        """The PNG as a data: URI."""
        return f"data:image/png;base64,{base64.b64encode(self.png).decode()}"


Shape = Line | Curve | Dot | Box | Label | Raster


@dataclass(frozen=True)
class Drawing:
    """Shapes on `width` x `height` pixels; `title` is the text alternative."""

    width: float
    height: float
    title: str
    shapes: Sequence[Shape]


@dataclass(frozen=True)
class Sheet:
    """A figure: panels side by side and a caption that says how to read them."""

    panels: Sequence[Drawing]
    caption: str


def sheet(panels: Sequence[Drawing | None], caption: str) -> Sheet:
    """A sheet of the charts that have something to draw."""
    return Sheet([panel for panel in panels if panel is not None], caption)
