"""The bytes of coded states: which arrays they consist of, written, checked and decoded.

Modes and exponents of all heads, ranks, widths and steps of the components, their codes by width,
then steps and codes of the dense heads by width, then bfloat16 and float32 states. Every size
follows from the arrays before it.

Codes of a few bits are packed without gaps: eight share `bits` bytes. They are an eighth of all
codes apart, so that every operation runs along contiguous memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..errors import StatetrimError
from .low_rank import WIDTHS, dequantize, product

LOW_RANK, BFLOAT16, FLOAT32 = 0, 16, 32
DENSE = (4, 5, 6, 8)
MODES = (LOW_RANK, *DENSE, BFLOAT16, FLOAT32)
MAX_EXPONENT = 100
PLAIN = {BFLOAT16: torch.bfloat16, FLOAT32: torch.float32}


@dataclass(frozen=True, eq=False)
class HeadCodes:
    """The codes of heads [keys, values], not packed."""

    keys: int
    values: int
    modes: Tensor  # uint8 [heads]
    exponents: Tensor  # int8 [heads]: codes are of the state / 2**exponent; plain states are not
    ranks: Tensor  # uint8 [heads of low rank]
    widths: Tensor  # uint8 [components], head by head
    steps: Tensor  # float16 [components]
    codes: Tensor  # uint8 [components, keys + values]
    row_steps: dict[int, Tensor] = field(default_factory=dict)  # bits -> float16 [heads, keys]
    row_codes: dict[int, Tensor] = field(default_factory=dict)
    """Bits -> uint8 [heads of this mode, keys, values]."""
    plain: dict[int, Tensor] = field(default_factory=dict)
    """BFLOAT16 or FLOAT32 -> states [heads of this mode, keys, values]."""

    def components(self) -> Tensor:
        """Components [heads, rank, keys + values], float32; 0 where a head has fewer, or none."""
        ranks = torch.zeros_like(self.modes)
        ranks[self.modes == LOW_RANK] = self.ranks
        rank = int(ranks.max()) if len(ranks) else 0
        used = torch.arange(rank, device=ranks.device) < ranks.unsqueeze(1)
        rows = torch.zeros(*used.shape, self.keys + self.values, device=ranks.device)
        rows[used] = dequantize(self.codes, self.widths, self.steps)
        return rows

    def decode(self) -> Tensor:
        """States [heads, keys, values], float32."""
        rows, factors = self.components(), torch.exp2(self.exponents.float())
        rows[..., : self.keys] *= factors.reshape(-1, 1, 1)
        states = product(rows, self.keys)
        for bits, codes in self.row_codes.items():
            heads = self.modes == bits
            steps = self.row_steps[bits].float() * factors[heads].unsqueeze(-1)
            states[heads] = (codes.float() - (2 ** (bits - 1) - 1)) * steps.unsqueeze(-1)
        for mode, plain in self.plain.items():
            states[self.modes == mode] = plain.float()
        return states


def join(parts: Sequence[HeadCodes]) -> HeadCodes:
    """The codes of several groups of heads as one."""
    if len(parts) == 1:
        return parts[0]
    joined: dict[str, Any] = {}
    for name in ("modes", "exponents", "ranks", "widths", "steps", "codes"):
        joined[name] = torch.cat([getattr(part, name) for part in parts])
    for name in ("row_steps", "row_codes", "plain"):
        groups: dict[int, list[Tensor]] = {}
        for part in parts:
            for key, tensor in getattr(part, name).items():
                groups.setdefault(key, []).append(tensor)
        joined[name] = {key: torch.cat(groups[key]) for key in sorted(groups)}
    return HeadCodes(parts[0].keys, parts[0].values, **joined)


def write(heads: HeadCodes) -> Tensor:
    """The codes as bytes, uint8, on the CPU."""
    arrays = [heads.modes, heads.exponents, heads.ranks, pack(heads.widths, 4), heads.steps]
    arrays += [pack(heads.codes[heads.widths == width], width) for width in WIDTHS]
    for bits, codes in sorted(heads.row_codes.items()):
        arrays += [heads.row_steps[bits], pack(codes, bits)]
    arrays += [tensor for _, tensor in sorted(heads.plain.items())]
    return torch.cat([array.contiguous().flatten().view(torch.uint8).cpu() for array in arrays])


def parse(payload: Tensor, shape: tuple[int, int, int], device: torch.device) -> HeadCodes:
    """The codes of states of this shape, from untrusted bytes; refuses what `write` never makes."""
    count, keys, values = shape
    reader = _Reader(payload, device)
    modes, exponents = reader.take(count, torch.uint8), reader.take(count, torch.int8)
    of_mode = torch.bincount(modes, minlength=MODES[-1] + 1).tolist()
    reader.require(sum(of_mode[mode] for mode in MODES) == count, "modes")
    reader.require(bool((exponents.abs() <= MAX_EXPONENT).all()), "exponents")
    ranks = reader.take(of_mode[LOW_RANK], torch.uint8)
    reader.require(bool((ranks <= min(keys, values)).all()), "ranks")
    components = int(ranks.sum())
    widths = reader.take_packed(components, 4)
    reader.require(bool(((widths >= WIDTHS.start) & (widths < WIDTHS.stop)).all()), "widths")
    steps = reader.take_steps(components)
    by_width = []
    for width in WIDTHS:
        number = int((widths == width).sum())
        codes = reader.take_packed(number * (keys + values), width)
        by_width.append(codes.reshape(number, keys + values))
    places = torch.argsort(widths, stable=True).argsort()  # of components, head by head
    codes = torch.cat(by_width)[places]
    heads = HeadCodes(keys, values, modes, exponents, ranks, widths, steps, codes)
    for bits in DENSE:
        if number := of_mode[bits]:
            heads.row_steps[bits] = reader.take_steps(number * keys).reshape(number, keys)
            codes = reader.take_packed(number * keys * values, bits)
            heads.row_codes[bits] = codes.reshape(number, keys, values)
    for mode, dtype in PLAIN.items():
        if number := of_mode[mode]:
            plain = reader.take(number * keys * values, dtype)
            heads.plain[mode] = plain.reshape(number, keys, values)
    reader.require(reader.position == len(payload), "length")
    return heads


class _Reader:
    """Takes arrays from bytes one after the other, and refuses to read past the end."""

    def __init__(self, payload: Tensor, device: torch.device) -> None:
        self.payload, self.device, self.position = payload, device, 0

    def require(self, valid: bool, what: str) -> None:
        if not valid:
            raise StatetrimError(f"a coded state is damaged or not complete: its {what} do not fit")

    def take(self, count: int, dtype: torch.dtype) -> Tensor:
        size = count * dtype.itemsize
        self.require(self.position + size <= len(self.payload), "bytes")
        taken = self.payload[self.position : self.position + size].clone()
        self.position += size
        return taken.view(dtype).to(self.device)

    def take_packed(self, count: int, bits: int) -> Tensor:
        return unpack(self.take(packed_size(count, bits), torch.uint8), count, bits)

    def take_steps(self, count: int) -> Tensor:
        steps = self.take(count, torch.float16)
        self.require(bool((torch.isfinite(steps) & (steps >= 0)).all()), "steps")
        return steps


def packed_size(count: int, bits: int) -> int:
    """Bytes that `count` codes of `bits` bits take, filled up to a multiple of eight codes."""
    return -(-count // 8) * bits


def pack(codes: Tensor, bits: int) -> Tensor:
    """uint8 codes below 2**bits, of any shape, as bytes; `bits` is at most 8."""
    flat = codes.flatten()
    eighths = torch.nn.functional.pad(flat, (0, -len(flat) % 8)).reshape(8, -1)
    words = (eighths.long() << _shifts(bits, codes.device)).sum(0)
    return words.view(torch.uint8).reshape(-1, 8)[:, :bits].T.flatten()


def unpack(packed: Tensor, count: int, bits: int) -> Tensor:
    """The first `count` codes, uint8, of bytes that `pack` made."""
    rows = packed.reshape(bits, -1)
    words = torch.zeros(rows.shape[1], 8, dtype=torch.uint8, device=packed.device)
    words[:, :bits] = rows.T
    codes: Tensor = (words.view(torch.int64).T >> _shifts(bits, packed.device)) & (2**bits - 1)
    return codes.byte().flatten()[:count]


def _shifts(bits: int, device: torch.device) -> Tensor:
    """The first bit [8, 1] of each of eight codes in a word whose first `bits` bytes are stored."""
    return bits * torch.arange(8, device=device).unsqueeze(1)
