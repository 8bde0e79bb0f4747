"""Cut and quantise weights again, a block of rows at a time, and check what was written.

A cut is exact if elements that shared no scale before share none afterwards: then codes and scales
are copied. It is always so for one scale per row or per tensor. Else the values are quantised again
by the same scheme, with the scales that have the least error.

What a format costs: each value may be wrong by half the distance of the two codes around it, if its
block's largest magnitude has the largest code. To that comes the rounding of the scale.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ...errors import StatetrimError
from ..safetensors_file import STORED_DTYPES, ComputedTensor, TensorEdit
from .find import QuantizedTensor
from .read import (
    QuantizedSource,
    ReadRows,
    StoredInMemory,
    StoredTensors,
    dequantize,
    expand,
    global_factor,
    largest_by_block,
    read_global_scale,
    row_ranges,
    rows_at_a_time,
    sum_by_block,
)


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
        for part in torch.split(rows, rows_at_a_time(tensor)):
            codes = source.codes(int(part[0]), int(part[-1]) + 1)
            yield tensor.element.pack(codes[part - part[0]][:, columns])

    def scale_blocks() -> Iterator[Tensor]:
        first_rows = rows[:: result.block[0]] // tensor.block[0]
        first_columns = columns[:: result.block[1]] // tensor.block[1]
        yield source.stored_scales[first_rows][:, first_columns]

    return _outputs(result, code_blocks, scale_blocks)


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


def edited_rows(tensor: QuantizedTensor, edit: TensorEdit, stored: StoredTensors) -> ReadRows:
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
    tensor: QuantizedTensor, rows: ReadRows, stored: StoredTensors
) -> dict[str, ComputedTensor]:
    """Stored name -> what to write for a weight of the form of `tensor` with the values `rows`."""
    scales = _Scales(tensor, rows, stored)

    def code_blocks() -> Iterator[Tensor]:
        factors = scales.stored.float() * scales.global_factor
        for start, stop in row_ranges(tensor):
            scaled = rows(start, stop) / expand(factors, tensor, start, stop)
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


@dataclass(frozen=True)
class _Scales:
    """The scales of a weight that is quantised again."""

    tensor: QuantizedTensor
    rows: ReadRows
    source: StoredTensors

    @cached_property
    def largest(self) -> Tensor:
        return largest_by_block(self.tensor, self.rows)

    @cached_property
    def global_scale(self) -> Tensor:
        """The global scale to store, [1]: it gives the largest block the largest scale. 1 for a
        weight without one, and as it was for zeros."""
        before = read_global_scale(self.tensor, self.source)
        largest_code = self.tensor.element.largest_codes[0]
        factor = float(self.largest.max()) / largest_code / torch.finfo(self._dtype).max
        if self.tensor.global_scale is None or factor == 0:
            return before
        return torch.full_like(before, 1 / factor if self.tensor.global_divides else factor)

    @cached_property
    def global_factor(self) -> float:
        return global_factor(self.tensor, self.global_scale)

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
        """Scales that make a block's largest magnitude `largest_code`, in the stored dtype; the
        smallest is not 0, so that it can divide."""
        scales = self.largest / largest_code / self.global_factor
        limits = torch.finfo(self._dtype)
        return scales.clamp(limits.smallest_normal * limits.eps, limits.max).to(self._dtype)

    def _squared_error(self, scales: Tensor) -> Tensor:
        """The squared error of each block with these scales, [blocks of rows, of columns]."""
        element, factors = self.tensor.element, scales.float() * self.global_factor

        def squares(start: int, stop: int) -> Tensor:
            values, factor = self.rows(start, stop), expand(factors, self.tensor, start, stop)
            rounded = element.decode(element.encode(values / factor)) * factor
            return (rounded - values).double().square()

        return sum_by_block(self.tensor, squares)

    @property
    def _dtype(self) -> torch.dtype:
        return STORED_DTYPES[self.tensor.scales.dtype]


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


_ARITHMETIC = 2.0**-22  # float32, in which values are computed


def check_written(
    tensor: QuantizedTensor, rows: ReadRows, stored: StoredTensors, *, exact: bool
) -> float:
    """The error of a stored weight whose values should be `rows`: its norm over theirs.

    Raises StatetrimError if a block's error is larger than the format costs; if `exact`, than 0.
    """
    source = QuantizedSource(tensor, stored)
    constant = _cost_near_zero(tensor, largest_by_block(tensor, rows))

    def squared_errors(start: int, stop: int) -> Tensor:
        return (source.rows(start, stop).double() - rows(start, stop).double()).square()

    def squared_costs(start: int, stop: int) -> Tensor:
        proportional = rows(start, stop).double().abs() * (
            tensor.element.relative_step + _ARITHMETIC
        )
        return (expand(constant, tensor, start, stop) + proportional).square()

    errors = sum_by_block(tensor, squared_errors)
    square = float(sum_by_block(tensor, lambda *span: rows(*span).double().square()).sum())
    error = (float(errors.sum()) / square) ** 0.5 if square else float(errors.sum())
    allowed = torch.zeros(()) if exact else sum_by_block(tensor, squared_costs)
    if not bool((errors <= allowed).all()):  # also if one is NaN
        raise StatetrimError(
            f"tensor {tensor.name[:200]!r} as it was written has a relative error of {error:.2g}, "
            f"more than {tensor.description} costs; prune the unquantised weights and quantise the "
            f"result"
        )
    return error


def _cost_near_zero(tensor: QuantizedTensor, largest: Tensor) -> Tensor:
    """The largest error of a small value in each block, float64 [blocks of rows, of columns].

    Scales below a global scale have few bits: where they are smallest, one that is rounded down
    also loses a block's largest values. Without a global scale that is no cost but out of range.
    """
    element, limits = tensor.element, torch.finfo(STORED_DTYPES[tensor.scales.dtype])
    scales = largest.double() / min(element.largest_codes)
    constant = element.half_step * scales * (1 + limits.eps / 2)
    if tensor.global_scale is not None:
        smallest = limits.smallest_normal * limits.eps * float(scales.max()) / limits.max
        constant += element.largest_codes[0] * smallest
    return constant
