"""Widths by layer in vLLM's cache, as the plugin stores them (plugins/vllm).

All pages of vLLM's cache have one size. With the plugin it is that of the narrowest layer; a wider
layer is divided by heads into parts that fit into a page each.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from functools import cache
from math import ceil

from ...cut.geometry import Geometry
from .arithmetic import CacheModel, Settings, StateLayers, layer_bytes, layer_token_bytes

KeysValues = tuple[int, int]
"""Key and value channels per head."""


@dataclass(frozen=True)
class Heads:
    """Heads of one device with a cache of their own: a whole layer, or a part of one."""

    num_k_heads: int
    num_v_heads: int
    head_k_dim: int
    head_v_dim: int

    def part(self, count: int) -> "Heads | None":
        """The heads of one of `count` equal parts; None if the heads cannot be divided so.

        Value heads are divided. A part has the key heads that its value heads read: its own, or a
        copy of one that several parts share."""
        values, rest = divmod(self.num_v_heads, count)
        values_per_key = self.num_v_heads // self.num_k_heads
        if rest or (values % values_per_key and values_per_key % values):
            return None
        return replace(self, num_k_heads=max(1, values // values_per_key), num_v_heads=values)


def number_of_parts(layer: Heads, layers: Iterable[Heads], size: Callable[[Heads], float]) -> int:
    """Parts of `layer` that each fit into a page of the narrowest of all `layers`: as few as
    possible. If heads cannot be divided so far, as many as possible.

    The plugin imports nothing of this package and has the same function; a test compares them."""
    narrowest = min(map(size, layers))
    for count in range(1, layer.num_v_heads + 1):
        part = layer.part(count)
        if part is not None and size(part) <= narrowest:
            return count
    return layer.num_v_heads


@dataclass(frozen=True)
class Layout:
    """The pages of layers of some shapes: their size, and how many a layer of each shape takes."""

    page: float  # bytes
    parts: dict[KeysValues, int]


@dataclass(frozen=True)
class Paging:
    """What decides how many pages layers take, and how large they are, on one device."""

    num_k_heads: int
    num_v_heads: int
    softmax_layers: int  # also the layers of a group, of which the last is padded
    size: Callable[[Heads], float]  # bytes of a page for these heads
    unit: float = 1.0  # bytes of which a stored page is a multiple

    @staticmethod
    def of(caches: CacheModel, geometry: Geometry, settings: Settings) -> "Paging":
        """The paging of a model with these caches and the heads of `geometry`."""
        devices = settings.devices
        taps = caches.conv_width - 1 + settings.speculative

        def size(heads: Heads) -> float:
            group = _layers_over_devices(heads, 1, geometry, devices)
            return layer_bytes(group, caches, settings, taps)

        unit = settings.alignment * layer_token_bytes(caches, settings)
        return Paging(
            max(1, geometry.num_k_heads // devices),  # the only group of Mamba-2 is copied
            geometry.num_v_heads // devices,
            caches.softmax_layers,
            size,
            unit if caches.softmax_layers else 1.0,
        )

    def heads(self, keys: int, values: int) -> Heads:
        """A whole layer of this shape."""
        return Heads(self.num_k_heads, self.num_v_heads, keys, values)

    def layout(self, shapes: Collection[KeysValues]) -> Layout:
        """The pages if these are the shapes of all layers."""
        layers = [self.heads(*shape) for shape in shapes]
        size = cache(self.size)
        counts = [number_of_parts(layer, layers, size) for layer in layers]
        parts = [layer.part(count) for layer, count in zip(layers, counts, strict=True)]
        page = max(size(part) for part in parts if part is not None)
        return Layout(page, dict(zip(shapes, counts, strict=True)))

    def memory_of_share(self, layers: int, share: float, whole: KeysValues) -> float:
        """The most bytes that one shape with `share` of the state of `whole` takes in all layers:
        it keeps all channels of one axis, so that its convolution is as large as it can be."""
        keys, values = whole
        rest = max(self.size(self.heads(keys, 0)), self.size(self.heads(0, values)))
        page = share * self.size(self.heads(keys, values)) + (1 - share) * rest
        return self.stored(layers, page)

    def stored(self, pages: int, page: float) -> float:
        """Bytes of so many pages, with those of the last group that stay empty."""
        group = max(self.softmax_layers, 1)
        return group * ceil(pages / group) * self.unit * ceil(page / self.unit)


def in_parts(caches: CacheModel, geometry: Geometry, settings: Settings) -> tuple[StateLayers, ...]:
    """The layers as vLLM's plugin registers them on each device: wide ones as several with fewer
    heads. Heads that cannot be divided as far as needed are divided as far as possible."""
    paging = Paging.of(caches, geometry, settings)
    counts = paging.layout({(group.keys, group.values) for group in caches.states}).parts
    divided = []
    for group in caches.states:
        count = counts[group.keys, group.values]
        part = paging.heads(group.keys, group.values).part(count)
        assert part is not None
        divided.append(_layers_over_devices(part, group.layers * count, geometry, settings.devices))
    return tuple(divided)


def _layers_over_devices(
    heads: Heads, layers: int, geometry: Geometry, devices: int
) -> StateLayers:
    """Layers of which every device has these heads, with the heads of all devices."""
    key_heads, value_heads = heads.num_k_heads * devices, heads.num_v_heads * devices
    return StateLayers(
        layers=layers,
        heads=value_heads,
        keys=heads.head_k_dim,
        values=heads.head_v_dim,
        conv_key_heads=geometry.conv_key_heads * key_heads // geometry.num_k_heads,
        conv_value_heads=geometry.conv_value_heads * value_heads // geometry.num_v_heads,
    )
