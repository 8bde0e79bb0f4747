"""Numbers as a state cache stores them: rounded to a dtype, and widened again.

8-bit dtypes need a scale, the largest magnitude of a row over the largest the dtype holds; it is
kept in float32. The others have the range they have: float16 ends at 65,504.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Format:
    """A dtype of a stored state."""

    dtype: torch.dtype
    bytes: int
    digits: int | None = None  # bits of the mantissa; None: whole numbers
    lowest_exponent: int = 0  # of a normal number
    scaled_to: float | None = None  # the magnitude that a row's largest becomes


FORMATS = {
    "float32": Format(torch.float32, 4, 23, -126),
    "bfloat16": Format(torch.bfloat16, 2, 7, -126),
    "float16": Format(torch.float16, 2, 10, -14),
    "float8_e4m3fn": Format(torch.float8_e4m3fn, 1, 3, -6, scaled_to=448.0),
    "int8": Format(torch.int8, 1, scaled_to=127.0),
}
SCALE_BYTES = 4


def stored(x: Tensor, dtype: str, axis: int, generator: torch.Generator | None = None) -> Tensor:
    """`x` after being stored in `dtype` (a name of FORMATS) and read again, in its own dtype.

    A row, which shares a scale where one is needed, runs along `axis`. With a `generator` rounding
    is stochastic: up or down with the probability that keeps the mean.
    """
    form = FORMATS[dtype]
    if form.dtype == x.dtype:
        return x
    scale = torch.ones_like(x[..., :1])
    if form.scaled_to is not None:
        largest = x.abs().amax(axis, keepdim=True)
        scale = torch.where(largest > 0, largest / form.scaled_to, torch.ones_like(largest))
    return _rounded(x / scale, form, generator).to(x.dtype) * scale


def _rounded(x: Tensor, form: Format, generator: torch.Generator | None) -> Tensor:
    """A tensor that holds only numbers of the format."""
    if generator is None and form.digits is not None:
        return x.to(form.dtype)
    step = torch.ones_like(x)
    if form.digits is not None:
        exponent = (torch.frexp(x).exponent - 1).clamp_min(form.lowest_exponent)
        step = torch.ldexp(step, exponent - form.digits)
    steps = x / step  # exact: a step is a power of two
    if generator is None:
        return steps.round().to(form.dtype)
    draw = torch.rand(x.shape, generator=generator, device=generator.device).to(x)
    return ((steps + draw).floor() * step).to(form.dtype)


def stored_bytes(dtype: str, keys: int, values: int) -> int:
    """Bytes of one head's state of keys x values, the scales of its rows included."""
    form = FORMATS[dtype]
    scales = values * SCALE_BYTES if form.scaled_to is not None else 0
    return keys * values * form.bytes + scales
