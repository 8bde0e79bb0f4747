"""Compare a quantised weight, as it was written, with the values that it should have.

What a format costs: each value may be wrong by half the distance of the two codes around it, if its
block's largest magnitude has the largest code. To that comes the rounding of the scale.
"""

import torch
from torch import Tensor

from ...errors import StatetrimError
from ..safetensors_file import STORED_DTYPES
from .find import QuantizedTensor
from .read import QuantizedSource, ReadRows, StoredTensors, expand, largest_by_block, sum_by_block

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
