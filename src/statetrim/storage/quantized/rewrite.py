"""Read, cut and quantise weights again, a block of rows at a time.

A cut is exact if elements that shared no scale before share none afterwards: then codes and scales
are copied. It is always so for one scale per row or per tensor. Else the values are quantised again
by the same scheme, with the scales that have the least error.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from ...errors import StatetrimError
from ..safetensors_file import BLOCK_BYTES, STORED_DTYPES, ComputedTensor, TensorEdit
from .find import QuantizedTensor


class StoredTensors(Protocol):
    """Access to stored tensors, as a `Checkpoint` has it."""

    def read_stored(self, name: str) -> Tensor: ...

    def read_stored_rows(self, name: str, start: int, stop: int) -> Tensor: ...


class QuantizedSource:
    """A quantised weight in a checkpoint, read by rows."""

    def __init__(self, tensor: QuantizedTensor, stored: StoredTensors) -> None:
        self.tensor, self.stored = tensor, stored

    @cached_property
    def stored_scales(self) -> Tensor:
        """Scales [blocks of rows, blocks of columns], in the stored dtype."""
        scales = self.stored.read_stored(self.tensor.scales.name)
        if not bool(scales.float().isfinite().all()):
            raise StatetrimError(f"{self.tensor.scales.name[:200]!r} has NaN or infinity")
        return scales.reshape(self.tensor.blocks)

    @cached_property
    def global_factor(self) -> float:
        return _global_factor(self.tensor, _read_global_scale(self.tensor, self.stored))

    def codes(self, start: int, stop: int) -> Tensor:
        """Codes of rows `start` to `stop`, uint8 [rows, columns]."""
        stored = self.stored.read_stored_rows(self.tensor.codes.name, start, stop)
        return self.tensor.element.unpack(stored, self.tensor.shape[1])

    def rows(self, start: int, stop: int) -> Tensor:
        """Values of rows `start` to `stop`, float32 [rows, columns]."""
        scales = self.stored_scales.float() * self.global_factor
        values = self.tensor.element.decode(self.codes(start, stop))
        return values * _expand(scales, self.tensor, start, stop)


def dequantize(tensor: QuantizedTensor, stored: StoredTensors) -> Tensor:
    """The whole weight, float32 [rows, columns]."""
    return QuantizedSource(tensor, stored).rows(0, tensor.shape[0])


def cut_quantized(
    tensor: QuantizedTensor, edit: TensorEdit, stored: StoredTensors
) -> dict[str, ComputedTensor]:
    """Stored name -> what to write for a weight of which `edit` keeps rows and columns."""
    rows, columns = _kept(tensor, edit)
    result = tensor.resized(len(rows), len(columns))
    if not is_exact(tensor, edit):
        return quantize_rows(result, edited_rows(tensor, edit, stored), stored)
    source = QuantizedSource(tensor, stored)

    def code_blocks() -> Iterator[Tensor]:
        for part in torch.split(rows, _rows_at_a_time(tensor)):
            codes = source.codes(int(part[0]), int(part[-1]) + 1)
            yield tensor.element.pack(codes[part - part[0]][:, columns])

    def scale_blocks() -> Iterator[Tensor]:
        first_rows = rows[:: result.block[0]] // tensor.block[0]
        first_columns = columns[:: result.block[1]] // tensor.block[1]
        yield source.stored_scales[first_rows][:, first_columns]

    return _outputs(result, code_blocks, scale_blocks)


def cut_values(tensor: QuantizedTensor, edit: TensorEdit, stored: StoredTensors) -> Tensor:
    """The values that `cut_quantized` stores, float32."""
    rows, columns = _kept(tensor, edit)
    outputs = collect_all(cut_quantized(tensor, edit, stored), stored)
    if tensor.global_scale is not None:
        outputs.setdefault(tensor.global_scale, stored.read_stored(tensor.global_scale))
    return dequantize(tensor.resized(len(rows), len(columns)), StoredInMemory(outputs))


def is_exact(tensor: QuantizedTensor, edit: TensorEdit) -> bool:
    """Whether every block of the cut has elements of one block only, and no value changes."""
    if edit.column_factors is not None:
        return False
    for kept, size, length in zip(_kept(tensor, edit), tensor.block, tensor.shape, strict=True):
        if size in (1, length):
            continue
        for members in torch.split(kept // size, size):
            if not bool((members == members[0]).all()):
                return False
    return True


def edited_rows(
    tensor: QuantizedTensor, edit: TensorEdit, stored: StoredTensors
) -> Callable[[int, int], Tensor]:
    """A function that computes rows `start` to `stop` of the edited weight, float32."""
    source, (rows, columns) = QuantizedSource(tensor, stored), _kept(tensor, edit)

    def read(start: int, stop: int) -> Tensor:
        part = rows[start:stop]
        values = source.rows(int(part[0]), int(part[-1]) + 1)[part - part[0]]
        if edit.column_factors is not None:
            values = (values.double() * edit.column_factors).float()
        return values[:, columns]

    return read


def quantize_rows(
    tensor: QuantizedTensor, rows: Callable[[int, int], Tensor], stored: StoredTensors
) -> dict[str, ComputedTensor]:
    """Stored name -> what to write for a weight of the form of `tensor` with the values `rows`.

    The global scale stays as `stored` has it, unless it leaves a block's scale out of range.
    """
    scales = _Scales(tensor, rows, stored)

    def code_blocks() -> Iterator[Tensor]:
        factors = scales.stored.float() * scales.global_factor
        for start, stop in _row_ranges(tensor):
            scaled = rows(start, stop) / _expand(factors, tensor, start, stop)
            yield tensor.element.pack(tensor.element.encode(scaled))

    outputs = _outputs(tensor, code_blocks, lambda: iter([scales.stored]))
    if tensor.global_scale is not None:
        shape = tuple(stored.read_stored(tensor.global_scale).shape)
        outputs[tensor.global_scale] = ComputedTensor(shape, lambda: iter([scales.global_scale]))
    return outputs


def quantize_like(
    tensor: QuantizedTensor, value: Tensor, stored: StoredTensors
) -> tuple[Tensor, dict[str, Tensor]]:
    """`value` rounded to the scheme of `tensor`, and the stored tensors that hold it."""
    computed = quantize_rows(tensor, lambda start, stop: value[start:stop].float(), stored)
    outputs = collect_all(computed, stored)
    return dequantize(tensor, StoredInMemory(outputs)), outputs


def collect_all(computed: Mapping[str, ComputedTensor], stored: StoredTensors) -> dict[str, Tensor]:
    """The whole tensors to write, in memory, each of the dtype in which `stored` has it."""
    outputs: dict[str, Tensor] = {}
    for name, output in computed.items():
        raw = [block.contiguous().flatten().view(torch.uint8) for block in output.blocks()]
        dtype = stored.read_stored(name).dtype
        outputs[name] = torch.cat(raw).view(dtype).reshape(output.shape)
    return outputs


def relative_error(
    tensor: QuantizedTensor, rows: Callable[[int, int], Tensor], stored: StoredTensors
) -> float:
    """Root of squared error over squared norm, of a stored weight whose values should be `rows`."""
    source, error, square = QuantizedSource(tensor, stored), 0.0, 0.0
    for start, stop in _row_ranges(tensor):
        wanted = rows(start, stop).double()
        error += float((source.rows(start, stop) - wanted).square().sum())
        square += float(wanted.square().sum())
    return (error / square) ** 0.5 if square else 0.0


@dataclass(frozen=True)
class StoredInMemory:
    """Stored tensors that are not in a file."""

    tensors: Mapping[str, Tensor]

    def read_stored(self, name: str) -> Tensor:
        return self.tensors[name]

    def read_stored_rows(self, name: str, start: int, stop: int) -> Tensor:
        return self.tensors[name][start:stop].contiguous().view(torch.uint8)


@dataclass(frozen=True)
class _Scales:
    """The scales of a weight that is quantised again."""

    tensor: QuantizedTensor
    rows: Callable[[int, int], Tensor]
    source: StoredTensors

    @cached_property
    def largest(self) -> Tensor:
        """The largest magnitude of each block, float32 [blocks of rows, blocks of columns]."""
        largest = torch.zeros(self.tensor.blocks)
        for start, stop in _row_ranges(self.tensor):
            blocks = _by_block(self.rows(start, stop).abs(), self.tensor)
            part = largest[start // self.tensor.block[0] :][: len(blocks)]
            part.copy_(torch.maximum(part, blocks.amax((1, 3))))
        return largest

    @cached_property
    def global_scale(self) -> Tensor:
        """The global scale to store, [1]; 1 for a weight without one."""
        stored = _read_global_scale(self.tensor, self.source)
        highest = torch.finfo(self._dtype).max
        needed = float(self.largest.max()) / self.tensor.element.largest_codes[0]
        fits = needed <= _global_factor(self.tensor, stored) * highest
        if fits or self.tensor.global_scale is None:
            return stored
        factor = needed / highest
        return torch.full_like(stored, 1 / factor if self.tensor.global_divides else factor)

    @cached_property
    def global_factor(self) -> float:
        return _global_factor(self.tensor, self.global_scale)

    @cached_property
    def stored(self) -> Tensor:
        """The scales in the stored dtype: of those that the element offers, each block gets the one
        with the least squared error."""
        candidates = [self._rounded(largest) for largest in self.tensor.element.largest_codes]
        if len(candidates) == 1:
            return candidates[0]
        best = torch.stack([self._squared_error(scales) for scales in candidates]).argmin(0)
        chosen = torch.stack([scales.float() for scales in candidates]).gather(0, best[None])
        return chosen[0].to(self._dtype)

    def _rounded(self, largest_code: float) -> Tensor:
        """Scales that make a block's largest magnitude `largest_code`, in the stored dtype; that of
        a block of zeros is small, not 0."""
        scales = self.largest / largest_code / self.global_factor
        limits = torch.finfo(self._dtype)
        rounded = scales.clamp(max=limits.max).to(self._dtype).float()
        rounded[rounded == 0] = limits.eps
        return rounded.to(self._dtype)

    def _squared_error(self, scales: Tensor) -> Tensor:
        """The squared error of each block with these scales, [blocks of rows, of columns]."""
        errors = torch.zeros(self.tensor.blocks)
        element, factors = self.tensor.element, scales.float() * self.global_factor
        for start, stop in _row_ranges(self.tensor):
            values, factor = self.rows(start, stop), _expand(factors, self.tensor, start, stop)
            difference = element.decode(element.encode(values / factor)) * factor - values
            blocks = _by_block(difference.square(), self.tensor)
            errors[start // self.tensor.block[0] :][: len(blocks)] += blocks.sum((1, 3))
        return errors

    @property
    def _dtype(self) -> torch.dtype:
        return STORED_DTYPES[self.tensor.scales.dtype]


def _read_global_scale(tensor: QuantizedTensor, stored: StoredTensors) -> Tensor:
    """The global scale; 1 for a weight without one."""
    return stored.read_stored(tensor.global_scale) if tensor.global_scale else torch.ones(1)


def _global_factor(tensor: QuantizedTensor, global_scale: Tensor) -> float:
    """The factor by which every stored scale is multiplied."""
    value = float(global_scale)
    if not 0 < value < float("inf"):
        raise StatetrimError(f"{str(tensor.global_scale)[:200]!r} is {value}, which is no scale")
    return 1 / value if tensor.global_divides else value


def _kept(tensor: QuantizedTensor, edit: TensorEdit) -> list[Tensor]:
    """Indices of the rows and of the columns that stay."""
    kept = []
    for dim, size in enumerate(tensor.shape):
        mask = edit.masks.get(dim)
        kept.append(torch.arange(size) if mask is None else mask.nonzero().squeeze(1))
    return kept


def _outputs(
    tensor: QuantizedTensor,
    code_blocks: Callable[[], Iterator[Tensor]],
    scale_blocks: Callable[[], Iterator[Tensor]],
) -> dict[str, ComputedTensor]:
    """Stored name -> the tensor to write, for a weight of the form of `tensor`."""
    outputs = {
        tensor.codes.name: ComputedTensor(tensor.codes_shape, code_blocks),
        tensor.scales.name: ComputedTensor(tensor.scales_shape, scale_blocks),
    }
    if tensor.stored_shape is not None:
        shape = torch.tensor(tensor.shape, dtype=torch.int64)
        outputs[tensor.stored_shape] = ComputedTensor((2,), lambda: iter([shape]))
    return outputs


def _expand(scales: Tensor, tensor: QuantizedTensor, start: int, stop: int) -> Tensor:
    """The scale of each element of rows `start` to `stop`, [rows, columns]."""
    height, width = tensor.block
    by_row = scales[torch.arange(start, stop) // height]
    return by_row.repeat_interleave(width, 1)[:, : tensor.shape[1]]


def _by_block(values: Tensor, tensor: QuantizedTensor) -> Tensor:
    """Rows [rows, columns] of one of `_row_ranges`, padded with zeros and divided into blocks
    [blocks of rows, rows, blocks of columns, columns]."""
    rows, columns = values.shape
    height, width = min(tensor.block[0], rows), tensor.block[1]
    padded = torch.nn.functional.pad(values, (0, -columns % width, 0, -rows % height))
    rows_of_blocks = torch.unflatten(padded, 1, (-1, width))
    return torch.unflatten(rows_of_blocks, 0, (-1, height))


def _rows_at_a_time(tensor: QuantizedTensor) -> int:
    return max(1, BLOCK_BYTES // (4 * tensor.shape[1]))


def _row_ranges(tensor: QuantizedTensor) -> Iterator[tuple[int, int]]:
    """First and last row of what is in memory at a time: whole blocks, or parts of one."""
    rows, height, step = tensor.shape[0], tensor.block[0], _rows_at_a_time(tensor)
    if height < rows:
        step = max(height, step - step % height)
    for start in range(0, rows, step):
        yield start, min(start + step, rows)
