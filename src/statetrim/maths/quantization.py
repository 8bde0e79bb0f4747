"""Fake quantization of states: rounded to a storage dtype and converted back.

8-bit dtypes need a float32 scale per row: the row's largest magnitude over the largest that the
dtype represents. Other dtypes are not scaled; float16 overflows above 65,504.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class StorageFormat:
    """A dtype in which a state can be stored."""

    dtype: torch.dtype
    mantissa_bits: int | None = None  # None for an integer dtype
    min_exponent: int = 0  # of a normal number
    row_maximum: float | None = None  # a row is scaled so that its largest magnitude is this


FORMATS = {
    "float32": StorageFormat(torch.float32, 23, -126),
    "bfloat16": StorageFormat(torch.bfloat16, 7, -126),
    "float16": StorageFormat(torch.float16, 10, -14),
    "float8_e4m3fn": StorageFormat(torch.float8_e4m3fn, 3, -6, row_maximum=448.0),
    "int8": StorageFormat(torch.int8, row_maximum=127.0),
}


def fake_quantize(
    x: Tensor, dtype: str, axis: int, generator: torch.Generator | None = None
) -> Tensor:
    """`x`, in its own dtype, rounded to `dtype`; elements along `axis` form a row, which shares a
    scale if the dtype needs one. With a `generator` rounding is stochastic and unbiased."""
    storage = FORMATS[dtype]
    if storage.dtype == x.dtype:
        return x
    scale = torch.ones_like(x[..., :1])
    if storage.row_maximum is not None:
        largest = x.abs().amax(axis, keepdim=True)
        scale = torch.where(largest > 0, largest / storage.row_maximum, torch.ones_like(largest))
    return _codes(x / scale, storage, generator).to(x.dtype) * scale


def _codes(x: Tensor, storage: StorageFormat, generator: torch.Generator | None) -> Tensor:
    """`x`, already scaled, in the dtype of `storage`; rounded stochastically with a generator."""
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
    rounded = (steps + draw).floor() * step
    if storage.row_maximum is not None:  # in float32, 127 + draw may be 128, which wraps to -128
        rounded = rounded.clamp(-storage.row_maximum, storage.row_maximum)
    return rounded.to(storage.dtype)
