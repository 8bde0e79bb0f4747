"""Numbers as a state cache stores them: rounded to a dtype, and widened again.

8-bit dtypes need a scale, the largest magnitude of a row over the largest the dtype holds; it is
kept in float32. The others have the range they have: float16 ends at 65,504.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class StorageFormat:
    """A dtype of a stored state."""

    dtype: torch.dtype
    num_bytes: int
    mantissa_bits: int | None = None  # bits of the mantissa; None: whole numbers
    min_exponent: int = 0  # of a normal number
    row_maximum: float | None = None  # the magnitude that a row's largest becomes


FORMATS = {
    "float32": StorageFormat(torch.float32, 4, 23, -126),
    "bfloat16": StorageFormat(torch.bfloat16, 2, 7, -126),
    "float16": StorageFormat(torch.float16, 2, 10, -14),
    "float8_e4m3fn": StorageFormat(torch.float8_e4m3fn, 1, 3, -6, row_maximum=448.0),
    "int8": StorageFormat(torch.int8, 1, row_maximum=127.0),
}
SCALE_BYTES = 4


def fake_quantize(
    x: Tensor, dtype: str, axis: int, generator: torch.Generator | None = None
) -> Tensor:
    """`x` after being stored in `dtype` (a name of FORMATS) and read again, in its own dtype.

    A row, which shares a scale where one is needed, runs along `axis`. With a `generator` rounding
    is stochastic: up or down with the probability that keeps the mean.
    """
    storage = FORMATS[dtype]
    if storage.dtype == x.dtype:
        return x
    scale = torch.ones_like(x[..., :1])
    if storage.row_maximum is not None:
        largest = x.abs().amax(axis, keepdim=True)
        scale = torch.where(largest > 0, largest / storage.row_maximum, torch.ones_like(largest))
    return _rounded(x / scale, storage, generator).to(x.dtype) * scale


def _rounded(x: Tensor, storage: StorageFormat, generator: torch.Generator | None) -> Tensor:
    """A tensor that holds only numbers of the format."""
    if generator is None and storage.mantissa_bits is not None:
        return x.to(storage.dtype)
    step = torch.ones_like(x)
    if storage.mantissa_bits is not None:
        exponent = (torch.frexp(x).exponent - 1).clamp_min(storage.min_exponent)
        step = torch.ldexp(step, exponent - storage.mantissa_bits)
    steps = x / step  # exact: a step is a power of two
    if generator is None:
        return steps.round().to(storage.dtype)
    draw = torch.rand(x.shape, generator=generator, device=generator.device).to(x)
    return ((steps + draw).floor() * step).to(storage.dtype)


def stored_bytes(dtype: str, keys: int, values: int) -> int:
    """Bytes of one head's state of keys x values, the scales of its rows included."""
    storage = FORMATS[dtype]
    scales = values * SCALE_BYTES if storage.row_maximum is not None else 0
    return keys * values * storage.num_bytes + scales
