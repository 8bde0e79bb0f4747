"""Shapes by layer, as a user writes them: `0=64x64,others=32x32`."""

import re
from collections.abc import Mapping

from ..errors import StatetrimError
from ..geometry import Geometry
from ..maths.formatting import shorten

OTHERS = "others"
Widths = str | Mapping[int, tuple[int, int]]
"""Text, or layer -> keys and values per head; layers that are left out keep all they have."""

_ENTRY = re.compile(rf"(\d{{1,6}}|{OTHERS})=(\d{{1,6}})x(\d{{1,6}})")


def parse_widths(widths: Widths, geometry: Geometry) -> Geometry:
    """`geometry` with these keys and values per head in each layer."""
    shapes_by_name = (
        _parse_entries(widths)
        if isinstance(widths, str)
        else {str(k): v for k, v in widths.items()}
    )
    layer_names = {str(layer) for layer in geometry.layers}
    unknown = sorted(set(shapes_by_name) - layer_names - {OTHERS})
    if unknown:
        layers = ", ".join(map(str, geometry.layers))
        raise StatetrimError(
            f"layer {shorten(unknown[0])} has no linear attention; layers that have: {shorten(layers)}"
        )
    shapes = {}
    for layer, current in geometry.shapes.items():
        shapes[layer] = shapes_by_name.get(str(layer), shapes_by_name.get(OTHERS, current))
        if not all(1 <= n <= limit for n, limit in zip(shapes[layer], current, strict=True)):
            keys, values = shapes[layer]
            raise StatetrimError(
                f"layer {layer} has {current[0]} x {current[1]} channels, so it cannot keep "
                f"{keys} x {values}"
            )
    if shapes == geometry.shapes:
        raise StatetrimError("these widths leave every layer whole, so nothing would change")
    return geometry.with_shapes(shapes)


def widths_text(geometry: Geometry) -> str:
    """The text that `read_widths` reads as the shapes of `geometry`."""
    return ",".join(f"{layer}={keys}x{values}" for layer, (keys, values) in geometry.shapes.items())


def _parse_entries(text: str) -> dict[str, tuple[int, int]]:
    shapes_by_name: dict[str, tuple[int, int]] = {}
    for entry in text.replace(" ", "").split(","):
        match = _ENTRY.fullmatch(entry)
        if match is None or match[1] in shapes_by_name:
            raise StatetrimError(
                f"cannot read the widths {shorten(entry)!r}; write keys x values per head by layer, "
                f"each once, such as 0=64x64,others=32x32"
            )
        shapes_by_name[match[1]] = int(match[2]), int(match[3])
    return shapes_by_name
