"""How quantised weights are stored: their elements, and what a config says of these and of scales.

A code is an element's bits as uint8. Two 4-bit codes share a byte, the first in its low half;
32-bit words of packed integers, of 4 or 8 bits, have the same bytes, because safetensors is
little-endian.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...errors import StatetrimError

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


MAX_BLOCK = 4096
_ELEMENTS = {
    ("F8_E4M3", "float", 8): FP8,
    ("U8", "float", 4): FP4,
    ("I8", "int", 8): INT8,
    ("I32", "int", 8): PACKED_INT8,
    ("I32", "int", 4): INT4,
}
"""Stored dtype, type and bits -> element."""
CODE_DTYPES = frozenset(dtype for dtype, _, _ in _ELEMENTS)


@dataclass(frozen=True)
class Scheme:
    """Type and bits of an element, and the rows and columns that share a scale (None: all).

    A scale of the last rows or columns may cover fewer, unless `whole`.
    """

    type: str  # "float" or "int"
    bits: int
    rows: int | None
    columns: int | None
    whole: bool = False

    def element(self, dtype: str) -> Element | None:
        """The element, if codes are stored as `dtype`; None if that is not known."""
        return _ELEMENTS.get((dtype, self.type, self.bits))

    def block(self, rows: int, columns: int) -> tuple[int, int]:
        """Rows and columns that share a scale in a weight of this shape, no more than it has:
        memory is allocated by whole blocks."""
        return min(rows, self.rows or rows), min(columns, self.columns or columns)


_TENSOR, _ROW = (None, None), (1, None)
_SELF_DESCRIBED = (
    *(Scheme(type, 8, *extent) for type in ("float", "int") for extent in (_TENSOR, _ROW)),
    Scheme("float", 4, 1, 16, whole=True),
)
"""Those that tensors alone show, as ModelOpt's configs do not describe them all."""


def schemes_in(config: Mapping[str, Any]) -> tuple[Scheme, ...]:
    """The schemes that a config names, without those that are not read."""
    section = config.get("quantization_config")
    if not isinstance(section, dict):
        return _SELF_DESCRIBED
    if section.get("transform_config"):
        raise StatetrimError(
            "config.json has a transform_config: its quantised weights are rotated, which is not "
            "read; prune the unquantised weights and quantise the result"
        )
    sizes, groups = section.get("weight_block_size"), section.get("config_groups")
    if sizes is not None:
        return (Scheme("float", 8, *_block_size(sizes)),)
    if not isinstance(groups, dict) or not groups:
        return _SELF_DESCRIBED
    schemes: list[Scheme] = []
    for group in groups.values():
        weights = group.get("weights") if isinstance(group, dict) else None
        if isinstance(weights, dict) and weights.get("symmetric", True) is True:
            schemes += _schemes_of_group(weights)
    return tuple(dict.fromkeys(schemes))


def _schemes_of_group(weights: Mapping[str, Any]) -> Iterator[Scheme]:
    """The schemes that one entry of `config_groups` may mean, with compressed-tensors' defaults;
    ModelOpt leaves it to the tensors whether a scale belongs to a row."""
    type, bits = weights.get("type", "int"), weights.get("num_bits", 8)
    if not isinstance(type, str) or not isinstance(bits, int):
        return
    strategy, size = weights.get("strategy"), weights.get("group_size")
    if strategy in ("group", "tensor_group") or (strategy is None and size not in (None, -1)):
        if not _is_size(size):
            raise StatetrimError(f"config.json has a group size that is none: {size!r:.60}")
        yield Scheme(type, bits, 1, size, whole=True)
    elif strategy == "block":
        yield Scheme(type, bits, *_block_size(weights.get("block_structure")))
    if strategy == "tensor" or (strategy is None and size is None):
        yield Scheme(type, bits, *_TENSOR)
    if strategy == "channel" or (strategy is None and size in (None, -1)):
        yield Scheme(type, bits, *_ROW)


def _block_size(sizes: Any) -> tuple[int, int]:
    if not isinstance(sizes, list) or len(sizes) != 2 or not all(map(_is_size, sizes)):
        raise StatetrimError(f"config.json has a block size that is no pair: {sizes!r:.60}")
    return sizes[0], sizes[1]


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 < value <= MAX_BLOCK
