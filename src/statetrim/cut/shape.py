"""Axes and shapes of a head's state."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from torch import Tensor

ChannelAxis = Literal["key", "value"]
"""An axis of a head's state, of which single channels are removed."""
CHANNEL_AXES: tuple[ChannelAxis, ChannelAxis] = ("key", "value")
Axis = ChannelAxis | Literal["head"]
"""What is removed: key channels, value channels, or whole heads."""
Kept = Mapping[Axis, Tensor]
"""What one layer keeps of the axes that are cut, ascending: of "key" and "value" channels [heads,
keep] of the heads that stay; of "head" value heads [key heads that stay, value heads of each]."""


class Shape(NamedTuple):
    """Key and value channels of one head's state."""

    head_k_dim: int
    head_v_dim: int

    @property
    def numel(self) -> int:
        return self.head_k_dim * self.head_v_dim

    def contains(self, other: "Shape") -> bool:
        """Whether it has at least as many channels on both axes."""
        return self.head_k_dim >= other.head_k_dim and self.head_v_dim >= other.head_v_dim

    def __str__(self) -> str:
        return f"{self.head_k_dim}x{self.head_v_dim}"
