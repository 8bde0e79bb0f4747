"""A picture as shapes: composed once, shown in the page, in SVG files and in PNG files alike."""

import base64
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor


@dataclass(frozen=True)
class Line:
    """`style` is one of `theme.STROKES`."""

    kind: ClassVar[str] = "line"
    x1: float
    y1: float
    x2: float
    y2: float
    style: str


@dataclass(frozen=True)
class Curve:
    kind: ClassVar[str] = "curve"
    points: Sequence[tuple[float, float]]
    style: str


@dataclass(frozen=True)
class Dot:
    """`colour` is a name of the theme."""

    kind: ClassVar[str] = "dot"
    x: float
    y: float
    radius: float
    colour: str


@dataclass(frozen=True)
class Box:
    """`colour` is a name of the theme, or a fixed #rrggbb."""

    kind: ClassVar[str] = "box"
    x: float
    y: float
    width: float
    height: float
    colour: str


@dataclass(frozen=True)
class Label:
    """Text whose baseline begins, is centred or ends at (x, y); `turned` reads upwards."""

    kind: ClassVar[str] = "label"
    x: float
    y: float
    text: str
    anchor: str = "start"
    colour: str = "ink"
    rotated: bool = False


@dataclass(frozen=True)
class Raster:
    """Pixels as indices into colours; a colour of None is transparent."""

    kind: ClassVar[str] = "raster"
    indices: Tensor  # uint8 [height, width]
    colours: Sequence[tuple[int, int, int] | None]
    alt: str = ""
    x: float = 0.0
    y: float = 0.0
    width: float = 0.0  # where it is part of a drawing
    height: float = 0.0

    @property
    def png(self) -> bytes:
        """A PNG of one byte a pixel."""
        height, width = self.indices.shape
        header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
        rows = b"".join(b"\0" + bytes(row) for row in self.indices.tolist())
        chunks = (
            (b"IHDR", header),
            (b"PLTE", b"".join(bytes(colour or (0, 0, 0)) for colour in self.colours)),
            (b"tRNS", bytes(0 if colour is None else 255 for colour in self.colours)),
            (b"IDAT", zlib.compress(rows, 9)),
            (b"IEND", b""),
        )
        return b"\x89PNG\r\n\x1a\n" + b"".join(
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
            for kind, body in chunks
        )

    @property
    def data_uri(self) -> str:
        """The PNG as the address of an image."""
        return f"data:image/png;base64,{base64.b64encode(self.png).decode()}"


Shape = Line | Curve | Dot | Box | Label | Raster


@dataclass(frozen=True)
class Drawing:
    """Shapes on a ground of `width` x `height` pixels; `title` says in words what it shows."""

    width: float
    height: float
    title: str
    shapes: Sequence[Shape]


@dataclass(frozen=True)
class Sheet:
    """Drawings side by side with a text that says how to read them: a picture in a file."""

    panels: Sequence[Drawing]
    caption: str
