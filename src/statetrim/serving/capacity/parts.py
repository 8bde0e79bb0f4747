"""Widths by layer in vLLM's cache, as the plugin stores them (plugins/vllm).

All pages of vLLM's cache have one size. With the plugin it is that of the narrowest layer; a wider
layer is divided by heads into parts that fit into a page each.
"""

from dataclasses import dataclass, replace
from math import ceil

from ...geometry import Geometry
from .arithmetic import StateLayers


@dataclass(frozen=True)
class Paging:
    """What decides how many pages a layer takes."""

    key_heads: int
    value_heads: int
    softmax_layers: int  # also the layers of a group, of which the last is padded

    @staticmethod
    def of(geometry: Geometry, softmax_layers: int) -> "Paging":
        return Paging(geometry.num_k_heads, geometry.num_v_heads, softmax_layers)

    def parts(self, numel: int, page: int) -> int | None:
        """Parts of a layer with `numel` elements per head, each of at most `page` elements per head
        of a whole layer; None if its heads cannot be divided so far."""
        for count in range(1, self.value_heads + 1):
            if self._divides(count) and numel <= page * count:
                return count
        return None

    def padded(self, pages: int) -> int:
        """Pages with those of the last group that stay empty."""
        group = max(self.softmax_layers, 1)
        return group * ceil(pages / group)

    def _divides(self, count: int) -> bool:
        """Whether every one of `count` parts has whole value heads, which read the same number of
        key heads, or share one with other parts."""
        values, rest = divmod(self.value_heads, count)
        values_per_key = self.value_heads // self.key_heads
        return not rest and (values % values_per_key == 0 or values_per_key % values == 0)


def in_parts(states: tuple[StateLayers, ...], devices: int) -> tuple[StateLayers, ...]:
    """The layers as vLLM's plugin registers them on each of `devices`: wide ones as several with
    fewer heads. Heads that cannot be divided as far as needed are divided as far as possible."""
    narrowest = min(group.keys * group.values for group in states)
    divided = []
    for group in states:
        key_heads, value_heads = group.conv_key_heads // 2, group.heads
        paging = Paging(key_heads // devices, value_heads // devices, 0)
        parts = paging.parts(group.keys * group.values, narrowest) or paging.value_heads
        keys_of_part = max(1, paging.key_heads // parts)  # or a copy that several parts share
        divided.append(
            replace(
                group,
                layers=group.layers * parts,
                heads=value_heads // parts,
                conv_key_heads=2 * keys_of_part * devices,
                conv_value_heads=group.conv_value_heads // parts,
            )
        )
    return tuple(divided)
