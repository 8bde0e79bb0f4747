"""Read quantised weights, a block of rows at a time: blocks of elements that share a scale."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from ...errors import StatetrimError
from ..safetensors_file import BLOCK_BYTES
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


ReadRows = Callable[[int, int], Tensor]
"""First and last row -> their values, float32 [rows, columns]."""


def expand(scales: Tensor, tensor: QuantizedTensor, start: int, stop: int) -> Tensor:
    """The scale of each element of rows `start` to `stop`, [rows, columns]."""
    height, width = tensor.block
    by_row = scales[torch.arange(start, stop) // height]
    return by_row.repeat_interleave(width, 1)[:, : tensor.shape[1]]


def by_block(values: Tensor, tensor: QuantizedTensor) -> Tensor:
    """Rows [rows, columns] of one of `row_ranges`, padded with zeros and divided into blocks
    [blocks of rows, rows, blocks of columns, columns]."""
    rows, columns = values.shape
    height, width = min(tensor.block[0], rows), tensor.block[1]
    padded = torch.nn.functional.pad(values, (0, -columns % width, 0, -rows % height))
    rows_of_blocks = torch.unflatten(padded, 1, (-1, width))
    return torch.unflatten(rows_of_blocks, 0, (-1, height))


def rows_at_a_time(tensor: QuantizedTensor) -> int:
    return max(1, BLOCK_BYTES // (4 * tensor.shape[1]))


def row_ranges(tensor: QuantizedTensor) -> Iterator[tuple[int, int]]:
    """First and last row of what is in memory at a time: whole blocks, or parts of one."""
    rows, height, step = tensor.shape[0], tensor.block[0], rows_at_a_time(tensor)
    if height < rows:
        step = max(height, step - step % height)
    for start in range(0, rows, step):
        yield start, min(start + step, rows)


def largest_by_block(tensor: QuantizedTensor, rows: ReadRows) -> Tensor:
    """The largest magnitude of each block, float32 [blocks of rows, blocks of columns]."""
    largest = torch.zeros(tensor.blocks)
    for start, stop in row_ranges(tensor):
        part = _part(largest, tensor, start, stop)
        part.copy_(torch.maximum(part, by_block(rows(start, stop).abs(), tensor).amax((1, 3))))
    return largest


def sum_by_block(tensor: QuantizedTensor, rows: ReadRows) -> Tensor:
    """The sum of each block, float64 [blocks of rows, blocks of columns]."""
    sums = torch.zeros(tensor.blocks, dtype=torch.float64)
    for start, stop in row_ranges(tensor):
        _part(sums, tensor, start, stop).add_(by_block(rows(start, stop), tensor).sum((1, 3)))
    return sums


def _part(blocks: Tensor, tensor: QuantizedTensor, start: int, stop: int) -> Tensor:
    """The entries of blocks [blocks of rows, ...] that rows `start` to `stop` belong to."""
    height = tensor.block[0]
    return blocks[start // height : (stop - 1) // height + 1]
