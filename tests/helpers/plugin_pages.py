"""The arithmetic of vLLM's plugin, and what layers take by it: an oracle for the package's own.

The plugin imports nothing of statetrim, and this part of it nothing of vLLM.
"""

from collections.abc import Callable, Sequence
from math import ceil
from pathlib import Path
from typing import Any

from helpers.modules import load_module

PLUGINS = Path(__file__).parents[2] / "plugins"
pages: Any = load_module(PLUGINS / "vllm" / "statetrim_vllm" / "pages.py")

Size = Callable[[Any], float]
"""Heads of the plugin -> bytes of a page for them."""
HEADS = ((16, 48), (16, 32), (16, 16), (8, 24), (4, 12), (2, 6), (2, 4), (4, 4), (2, 2), (1, 4))
"""Key and value heads."""


def page_size(state_bytes: float, input_bytes: float) -> Size:
    """Of vLLM's Gated DeltaNet with `input_bytes` for all stored inputs of a channel."""

    def size(heads: Any) -> float:
        channels = 2 * heads.num_k_heads * heads.head_k_dim + heads.num_v_heads * heads.head_v_dim
        numel = heads.num_v_heads * heads.head_k_dim * heads.head_v_dim
        return float(input_bytes * channels + state_bytes * numel)

    return size


def memory(
    shapes: Sequence[tuple[int, int]], heads: tuple[int, int], group: int, size: Size, unit: float
) -> float:
    """Bytes of layers of these shapes, each in the parts that the plugin gives it: all pages are as
    large as the largest part, a multiple of `unit`, and groups are padded."""
    layers = {shape: pages.Heads(*heads, *shape) for shape in set(shapes)}
    parts = {
        shape: pages.number_of_parts(layer, layers.values(), size)
        for shape, layer in layers.items()
    }
    page: float = max(size(layer.part(parts[shape])) for shape, layer in layers.items())
    total: int = sum(parts[shape] for shape in shapes)
    return group * ceil(total / group) * unit * ceil(page / unit)
