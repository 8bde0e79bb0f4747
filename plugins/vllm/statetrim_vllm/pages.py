"""Which heads share a page of the cache; without vLLM."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

FIELD = "statetrim_widths"


@dataclass(frozen=True)
class Heads:
    """Heads of one rank with a cache of their own: a whole layer, or a part of one."""

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


def layer_widths(model_config: Any) -> dict[str, tuple[int, int]] | None:
    """Layer -> key and value width, if the config lists widths by layer."""
    for config in (model_config.hf_config, model_config.hf_text_config):
        if widths := getattr(config, FIELD, None):
            return {layer: (keys, values) for layer, (keys, values) in widths.items()}
    return None


def number_of_parts(layer: Heads, layers: Iterable[Heads], size: Callable[[Heads], int]) -> int:
    """Parts of `layer` that each fit into a page of the narrowest of all `layers`: as few as
    possible. If heads cannot be divided so far, as many as possible."""
    narrowest = min(map(size, layers))
    for count in range(1, layer.num_v_heads + 1):
        part = layer.part(count)
        if part is not None and size(part) <= narrowest:
            return count
    return layer.num_v_heads
