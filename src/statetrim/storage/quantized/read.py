"""Read quantised weights, a block of rows at a time."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from ...errors import StatetrimError
from .blocks import expand
from .find import QuantizedTensor


class StoredTensors(Protocol):
    """Access to stored tensors, as a `Checkpoint` has it."""

    def read_stored(self, name: str) -> Tensor: ...

    def read_stored_row_bytes(self, name: str, start: int, stop: int) -> Tensor: ...


class QuantizedSource:
    """A quantised weight in a checkpoint, read by rows."""

    def __init__(self, tensor: QuantizedTensor, stored: StoredTensors) -> None:
        self.tensor, self.stored = tensor, stored

    @cached_property
    def shape(self) -> tuple[int, int]:
        """Rows and columns, which a shape that is stored with the codes must repeat."""
        name = self.tensor.stored_shape
        stored = (
            self.tensor.shape if name is None else tuple(self.stored.read_stored(name).tolist())
        )
        if stored != self.tensor.shape:
            raise StatetrimError(
                f"{str(name)[:200]!r} is {list(stored)}, but config and codes imply "
                f"{list(self.tensor.shape)}"
            )
        return self.tensor.shape

    @cached_property
    def stored_scales(self) -> Tensor:
        """Scales [blocks of rows, blocks of columns], in the stored dtype."""
        scales = self.stored.read_stored(self.tensor.scales.name)
        if not bool(scales.float().isfinite().all()):
            raise StatetrimError(f"{self.tensor.scales.name[:200]!r} has NaN or infinity")
        return scales.reshape(self.tensor.blocks)

    @cached_property
    def global_factor(self) -> float:
        return global_factor(self.tensor, read_global_scale(self.tensor, self.stored))

    def codes(self, start: int, stop: int) -> Tensor:
        """Codes of rows `start` to `stop`, uint8 [rows, columns]."""
        stored = self.stored.read_stored_row_bytes(self.tensor.codes.name, start, stop)
        return self.tensor.element.unpack(stored, self.shape[1])

    def rows(self, start: int, stop: int) -> Tensor:
        """Values of rows `start` to `stop`, float32 [rows, columns]."""
        scales = self.stored_scales.float() * self.global_factor
        values = self.tensor.element.decode(self.codes(start, stop))
        return values * expand(scales, self.tensor, start, stop)


def dequantize(tensor: QuantizedTensor, stored: StoredTensors) -> Tensor:
    """The whole weight, float32 [rows, columns]."""
    return QuantizedSource(tensor, stored).rows(0, tensor.shape[0])


@dataclass(frozen=True)
class StoredInMemory:
    """Stored tensors that are not in a file."""

    tensors: Mapping[str, Tensor]

    def read_stored(self, name: str) -> Tensor:
        return self.tensors[name]

    def read_stored_row_bytes(self, name: str, start: int, stop: int) -> Tensor:
        return self.tensors[name][start:stop].contiguous().view(torch.uint8)


def read_global_scale(tensor: QuantizedTensor, stored: StoredTensors) -> Tensor:
    """The global scale; 1 for a weight without one."""
    return stored.read_stored(tensor.global_scale) if tensor.global_scale else torch.ones(1)


def global_factor(tensor: QuantizedTensor, global_scale: Tensor) -> float:
    """The factor by which every stored scale is multiplied."""
    value = float(global_scale)
    if not 0 < value < float("inf"):
        raise StatetrimError(f"{str(tensor.global_scale)[:200]!r} is {value}, which is no scale")
    return 1 / value if tensor.global_divides else value
