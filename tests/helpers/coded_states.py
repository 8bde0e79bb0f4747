"""The code of one head written plainly in float64, and a reader of its bytes that shares nothing
with the package: an exhaustive search, and Python integers bit by bit."""

import math
import struct

import torch
from torch import Tensor

WIDTHS, FLOOR, GRID = range(3, 9), 0.02, range(-4, 41)


def low_rank_bits(state: Tensor, tolerance: float, metric: Tensor) -> float:
    """Bits of the cheapest low-rank code of `state` [keys, values]; infinite if none will do."""
    state, metric = state.double(), metric.double()
    weighted = metric @ state
    norm = float(weighted.norm())
    _, sigma, right = torch.linalg.svd(weighted, full_matrices=False)
    keys, values = state.shape
    for step in GRID:
        threshold = tolerance * norm * 2 ** (-step / 4)
        decoded, bits = torch.zeros_like(weighted), 0.0
        for strength, row in zip(sigma.tolist(), right, strict=True):
            if strength <= 0.7 * threshold:
                continue
            column = state @ row
            ratio = math.sqrt(float(row.abs().max() / column.abs().max()))
            column, row = column * ratio, row / ratio
            largest = float(column.abs().max())
            spread = float(metric.square().sum() * row.square().sum())
            noise = largest * math.sqrt((spread + values * (strength * ratio) ** 2) / 12)
            width = min(8, math.floor(math.log2(noise / threshold + 1) + 3))
            levels = 2 ** (width - 1) - 1
            unit = float(torch.tensor(largest / levels).half())
            codes = [torch.clamp((x / unit).round(), -levels, levels) for x in (column, row)]
            decoded += metric @ torch.outer(codes[0] * unit, codes[1] * unit)
            bits += width * (keys + values) + 20
        met = float((decoded - weighted).norm()) <= tolerance * norm
        if met and (bits >= FLOOR * keys * values * 32 or step == GRID[-1]):
            return bits
    return math.inf


def read_low_rank(payload: bytes, heads: int, keys: int, values: int) -> Tensor:
    """States [heads, keys, values], float64, of bytes in which every head is of low rank."""
    modes, exponents = payload[:heads], struct.unpack(f"{heads}b", payload[heads : 2 * heads])
    assert set(modes) == {0}
    ranks = payload[2 * heads : 3 * heads]
    place, components = 3 * heads, sum(ranks)

    def take_codes(count: int, bits: int) -> list[int]:
        nonlocal place
        eighth = -(-count // 8)
        planes = payload[place : place + eighth * bits]
        place += eighth * bits
        codes = []
        for number in range(count):
            part, offset = divmod(number, eighth)
            code = 0
            for bit in range(bits):
                byte, shift = divmod(part * bits + bit, 8)
                code |= (planes[byte * eighth + offset] >> shift & 1) << bit
            codes.append(code)
        return codes

    widths = take_codes(components, 4)
    steps = struct.unpack(f"<{components}e", payload[place : place + 2 * components])
    place += 2 * components
    rows: dict[int, list[int]] = {}
    for width in WIDTHS:
        chosen = [number for number, other in enumerate(widths) if other == width]
        codes = take_codes(len(chosen) * (keys + values), width) if chosen else []
        for index, number in enumerate(chosen):
            rows[number] = codes[index * (keys + values) : (index + 1) * (keys + values)]
    assert place == len(payload)
    states, number = torch.zeros(heads, keys, values, dtype=torch.float64), 0
    for head, rank in enumerate(ranks):
        for _ in range(rank):
            levels = 2 ** (widths[number] - 1) - 1
            row = (torch.tensor(rows[number]).double() - levels) * steps[number]
            states[head] += torch.outer(row[:keys], row[keys:]) * 2.0 ** exponents[head]
            number += 1
    return states
