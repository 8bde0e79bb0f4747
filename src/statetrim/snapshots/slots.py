"""The tensors and counters of a cache of transformers, fla or portable, one by one."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..portable.kernels import DeferredState

_STATES = {"_state", "recurrent_state", "recurrent_states"}  # of portable, fla, transformers
_CONVOLUTIONS = {"conv_state", "conv_states"}


@dataclass(frozen=True, eq=False)
class Slot:
    """A place in a cache: `holder[key]`, or of a tuple there the item `index`."""

    name: str  # such as "3.recurrent_states.0"
    layer: int
    attribute: str  # of the layer, or the last name in the dictionaries below it
    holder: dict[Any, Any]
    key: Any
    index: int | None = None

    @property
    def value(self) -> Any:
        """The tensor or counter; a state has all pending writes applied."""
        value = self.holder[self.key]
        value = value if self.index is None else value[self.index]
        return value.flush() if isinstance(value, DeferredState) else value

    def put(self, value: Any) -> None:
        if self.index is not None:
            items = list(self.holder[self.key])
            items[self.index] = value
            value = tuple(items)
        self.holder[self.key] = value

    @property
    def is_state(self) -> bool:
        """Whether it holds recurrent states [batch, heads, ., .]."""
        return self.attribute in _STATES and self._dimensions == 4

    @property
    def is_convolution(self) -> bool:
        """Whether it holds convolution states [batch, channels, taps]."""
        return self.attribute in _CONVOLUTIONS and self._dimensions == 3

    @property
    def is_coded(self) -> bool:
        """Whether a saved prompt holds it in coded form."""
        return self.is_state or self.is_convolution

    @property
    def _dimensions(self) -> int:
        value = self.value
        return value.dim() if isinstance(value, Tensor) else 0


def slots(cache: Any) -> Iterator[Slot]:
    """Every tensor and counter of a cache of transformers, fla or portable."""
    for layer, cached in enumerate(cache.layers):
        yield from _slots_in(vars(cached), str(layer), layer, "")


def _slots_in(holder: dict[Any, Any], place: str, layer: int, attribute: str) -> Iterator[Slot]:
    for key in list(holder):
        value, name = holder[key], f"{place}.{key}"
        owner = key if isinstance(key, str) else attribute
        if isinstance(value, dict):
            yield from _slots_in(value, name, layer, owner)
        elif isinstance(value, tuple | list):
            for index, item in enumerate(value):
                if isinstance(item, Tensor):
                    yield Slot(f"{name}.{index}", layer, owner, holder, key, index)
        elif isinstance(value, Tensor | DeferredState) or type(value) is int:
            yield Slot(name, layer, owner, holder, key)
