"""How one element of a quantised weight is stored, and what it is worth.

A code is the element's bits as uint8. Two 4-bit codes share a byte, the first in its low half;
32-bit words of packed integers, of 4 or 8 bits, have the same bytes, because safetensors is
little-endian.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

_FP4_MAGNITUDES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
_FP4_VALUES = torch.cat([_FP4_MAGNITUDES, -_FP4_MAGNITUDES])
# Halfway between two magnitudes the one with the even code is nearest.
_FP4_MIDPOINTS = (_FP4_MAGNITUDES[1:] + _FP4_MAGNITUDES[:-1]) / 2
_FP4_MIDPOINTS[1::2] = _FP4_MIDPOINTS[1::2].nextafter(torch.zeros(()))


@dataclass(frozen=True)
class Element:
    """A kind of element. A block's largest magnitude is scaled to one of `largest_codes`; the first
    is what quantisers use. Integers reach one further below zero than above.

    Rounding costs at most `half_step` near zero, in multiples of the scale, and at most the part
    `relative_step` of larger values.
    """

    name: str
    bits: int
    largest_codes: tuple[float, ...]
    half_step: float
    relative_step: float
    decode: Callable[[Tensor], Tensor]
    """Codes -> float32 values."""
    encode: Callable[[Tensor], Tensor]
    """Float32 values, at most about the largest -> codes of the nearest."""

    def unpack(self, stored: Tensor, columns: int) -> Tensor:
        """Codes [rows, columns] of stored bytes [rows, bytes]."""
        if self.bits == 8:
            return stored
        halves = torch.stack([stored & 15, stored >> 4], dim=2)
        return halves.flatten(1)[:, :columns]

    def pack(self, codes: Tensor) -> Tensor:
        """The bytes to store for codes [rows, columns]."""
        if self.bits == 8:
            return codes
        return codes[:, 0::2] | (codes[:, 1::2] << 4)


def _encode_fp8(values: Tensor) -> Tensor:
    # A conversion alone would make NaN of what is larger.
    return values.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)


def _encode_fp4(values: Tensor) -> Tensor:
    codes = torch.bucketize(values.abs(), _FP4_MIDPOINTS, out_int32=True)
    return (codes + len(_FP4_MAGNITUDES) * values.signbit()).to(torch.uint8)


def _decode_fp4(codes: Tensor) -> Tensor:
    return _FP4_VALUES.index_select(0, codes.flatten().int()).view(codes.shape)


def _decode_fp8(codes: Tensor) -> Tensor:
    return codes.view(torch.float8_e4m3fn).float()


def _integer(bits: int, offset: int) -> Element:
    """Integers, in two's complement, or without a sign if an `offset` is added to them."""
    lowest, stored = -(2 ** (bits - 1)), torch.uint8 if offset else torch.int8

    def decode(codes: Tensor) -> Tensor:
        return codes.view(stored).float() - offset

    def encode(values: Tensor) -> Tensor:
        numbers = values.round().clamp(lowest, -lowest - 1) + offset
        return numbers.to(stored).view(torch.uint8)

    largest = (-lowest - 0.5, -lowest - 1.0, -lowest + 0.0)
    return Element(f"INT{bits}", bits, largest, 0.5, 0.0, decode, encode)


# Halfway between 1 and the next number with m bits after the point, 2^-m apart, the relative error
# is 1 / (2^(m + 1) + 1).
FP8 = Element("FP8", 8, (448.0,), 2**-10, 1 / 17, _decode_fp8, _encode_fp8)
FP4 = Element("FP4", 4, (6.0,), 0.25, 1 / 5, _decode_fp4, _encode_fp4)
INT8, PACKED_INT8, INT4 = _integer(8, 0), _integer(8, 128), _integer(4, 8)
