"""The blocks of a weight that share a scale, and the rows that are in memory at a time."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ..safetensors_file import BLOCK_BYTES
from .find import QuantizedTensor

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
