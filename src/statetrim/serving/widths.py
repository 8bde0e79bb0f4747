"""Widths by layer as text: `0=64x64,others=32x32`."""

import re
from collections.abc import Mapping

from ..errors import StatetrimError
from ..geometry import Geometry
from ..maths.formatting import shorten

OTHERS = "others"
Widths = str | Mapping[int, tuple[int, int]]
"""Text, or layer -> key and value channels per head; layers left out keep all channels."""

_ENTRY = re.compile(rf"(\d{{1,6}}|{OTHERS})=(\d{{1,6}})x(\d{{1,6}})")


def parse_widths(widths: Widths, geometry: Geometry) -> Geometry:
    """`geometry` with these widths; layers that are not named get those of "others", or keep all
    channels.

    Raises StatetrimError for text that cannot be read, for layers or widths that the geometry does
    not have, and if nothing would change.
    """
    if isinstance(widths, str):
        shapes_by_name = _parse_entries(widths)
    else:
        shapes_by_name = {str(layer): shape for layer, shape in widths.items()}
    layer_names = [str(layer) for layer in geometry.layers]
    unknown = sorted(set(shapes_by_name) - {*layer_names, OTHERS})
    if unknown:
        layers = shorten(", ".join(layer_names))
        raise StatetrimError(
            f"layer {shorten(unknown[0])} has no linear attention; layers that have: {layers}"
        )
    shapes = {}
    for layer, current in geometry.shapes.items():
        keys, values = shapes_by_name.get(str(layer), shapes_by_name.get(OTHERS, current))
        shapes[layer] = keys, values
        if not (1 <= keys <= current[0] and 1 <= values <= current[1]):
            raise StatetrimError(
                f"layer {layer} has {current[0]} x {current[1]} channels, so it cannot keep "
                f"{keys} x {values}"
            )
    if shapes == geometry.shapes:
        raise StatetrimError("these widths leave every layer whole, so nothing would change")
    return geometry.with_shapes(shapes)


def widths_text(geometry: Geometry) -> str:
    """The shapes of all layers, as text that `parse_widths` reads."""
    return ",".join(f"{layer}={keys}x{values}" for layer, (keys, values) in geometry.shapes.items())


def _parse_entries(text: str) -> dict[str, tuple[int, int]]:
    """Layer, or "others" -> key and value channels; raises StatetrimError for an entry that cannot
    be read, or that is repeated."""
    shapes_by_name: dict[str, tuple[int, int]] = {}
    for entry in text.replace(" ", "").split(","):
        match = _ENTRY.fullmatch(entry)
        if match is None or match[1] in shapes_by_name:
            raise StatetrimError(
                f"cannot read the widths {shorten(entry)!r}; write keys x values per head by "
                f"layer, each once, such as 0=64x64,others=32x32"
            )
        shapes_by_name[match[1]] = int(match[2]), int(match[3])
    return shapes_by_name
