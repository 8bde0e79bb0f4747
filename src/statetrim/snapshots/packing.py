"""Whole numbers of a few bits each, packed into bytes without gaps.

Eight codes share `bits` bytes. They are an eighth of all codes apart, so that every operation below
runs along contiguous memory.
"""

import torch
from torch import Tensor


def packed_size(count: int, bits: int) -> int:
    """Bytes that `count` codes of `bits` bits take, filled up to a multiple of eight codes."""
    return -(-count // 8) * bits


def pack(codes: Tensor, bits: int) -> Tensor:
    """uint8 codes below 2**bits, of any shape, as bytes; `bits` is at most 8."""
    flat = codes.flatten()
    eighths = torch.nn.functional.pad(flat, (0, -len(flat) % 8)).reshape(8, -1)
    packed = torch.zeros(bits, eighths.shape[1], dtype=torch.uint8, device=codes.device)
    for index, part in enumerate(eighths):
        byte, shift = divmod(index * bits, 8)
        packed[byte] |= part << shift
        if shift + bits > 8:
            packed[byte + 1] |= part >> (8 - shift)
    return packed.flatten()


def unpack(packed: Tensor, count: int, bits: int) -> Tensor:
    """The first `count` codes, uint8, of bytes that `pack` made."""
    rows = packed.reshape(bits, -1)
    codes = torch.empty(8, rows.shape[1], dtype=torch.uint8, device=packed.device)
    for index in range(8):
        byte, shift = divmod(index * bits, 8)
        code = rows[byte] >> shift
        if shift + bits > 8:
            code |= rows[byte + 1] << (8 - shift)
        torch.bitwise_and(code, 2**bits - 1, out=codes[index])
    return codes.flatten()[:count]
