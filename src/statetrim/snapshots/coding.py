"""States in fewer bytes, with a bound on the error of what will be decoded.

Every head takes the cheapest code that meets the bound: components of low rank, all its numbers in
4, 5, 6 or 8 bits with a step per key channel, bfloat16, or float32.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import StatetrimError
from . import layout
from .layout import BFLOAT16, DENSE, FLOAT32, LOW_RANK, MAX_EXPONENT, PLAIN, HeadCodes
from .low_rank import LowRank, Search, relative

FLOOR = 0.02  # of the float32 bytes; below, a state of one repeated token lost too much
MAX_NUMBERS = 2**31  # of coded states that are decoded together
_HEADS_AT_ONCE = 64  # what they need stays in a processor's cache
_RESOLUTION = 2.0**-20  # of products in float32, relative to the sizes of their factors
_MARGIN = 0.999  # of the tolerance: float32 sums are that exact


@dataclass(frozen=True, eq=False)
class Coded:
    """States [heads, keys, values] as bytes. `errors` [heads], relative, is known after `encode`
    only."""

    shape: tuple[int, int, int]
    payload: Tensor  # uint8 [bytes], on the CPU
    errors: Tensor | None = None

    @property
    def nbytes(self) -> int:
        return len(self.payload)

    @property
    def codes(self) -> HeadCodes:
        """The codes of every head, unpacked."""
        return layout.parse(self.payload, self.shape, torch.device("cpu"))


def encode(states: Tensor, tolerance: float = 0.05, metric: Tensor | None = None) -> Coded:
    """Code states [..., keys, values] so that |W (decoded - state)| <= tolerance |W state| for
    every head, in the Frobenius norm, with W = `metric` [heads or fewer, keys, keys] (None: 1).

    A metric of fewer heads repeats, and its scale does not matter. Refuses numbers that are not
    finite, and a metric that is zero.
    """
    states = _check_states(states, tolerance, metric)
    if metric is not None:
        metric = _scale_by_power_of_two(metric).to(states)
    heads, keys, values = states.shape
    cycle = 1 if metric is None else len(metric)
    coded = []
    for chunk in torch.split(states, cycle * max(1, _HEADS_AT_ONCE // cycle)):
        weight = None
        if metric is not None:
            weight = metric.repeat(len(chunk) // cycle, 1, 1)
        coded.append(_encode_heads(chunk, tolerance, weight))
    parts, errors = zip(*coded, strict=True)
    return Coded((heads, keys, values), layout.write(layout.join(parts)), torch.cat(errors))


def decode(coded: Coded, device: str | torch.device = "cpu") -> Tensor:
    """The states [heads, keys, values], float32; refuses bytes that are no code of this shape."""
    heads, keys, values = coded.shape
    if heads * keys * values > MAX_NUMBERS or min(coded.shape) < 0:
        raise StatetrimError(f"coded states {list(coded.shape)} are too many to decode together")
    states = layout.parse(coded.payload, coded.shape, torch.device(device)).decode()
    if not all(bool(torch.isfinite(extreme)) for extreme in torch.aminmax(states)):
        raise StatetrimError("a coded state holds numbers that are not finite")
    return states


def _check_states(states: Tensor, tolerance: float, metric: Tensor | None) -> Tensor:
    """The states as float32 [heads, keys, values]; refuses what `encode` cannot code."""
    if states.dim() < 3 or not states.numel() or not states.is_floating_point():
        raise StatetrimError(
            f"states are numbers [heads, keys, values], not {list(states.shape)} of {states.dtype}"
        )
    if not 0 < tolerance < 1:
        raise StatetrimError(f"a tolerance must lie between 0 and 1, not {tolerance}")
    keys = states.shape[-2]
    states = states.detach().float().reshape(-1, *states.shape[-2:])
    if metric is not None and (
        metric.shape[1:] != (keys, keys) or not len(metric) or len(states) % len(metric)
    ):
        raise StatetrimError(
            f"a metric of shape {list(metric.shape)} does not fit states {list(states.shape)}"
        )
    return states


def _encode_heads(
    states: Tensor, tolerance: float, metric: Tensor | None
) -> tuple[HeadCodes, Tensor]:
    """The cheapest code of each head that meets the bound, and its relative error."""
    heads, keys, values = states.shape
    scaled, exponents, extreme = _scale(states)
    weighted = scaled
    if metric is not None:
        weighted = metric @ scaled
        # Of so small a norm in the metric, rounding in float32 hides the errors.
        size = metric.flatten(1).norm(dim=1) * scaled.flatten(1).norm(dim=1)
        extreme = extreme | (weighted.flatten(1).norm(dim=1) * tolerance < _RESOLUTION * size)
    search = Search(scaled, weighted, metric, tolerance)
    low_rank_codes = search.run(tolerance * _MARGIN, FLOOR * keys * values * 32)
    modes = torch.full((heads,), LOW_RANK, dtype=torch.uint8, device=states.device)
    bits, errors = low_rank_codes.bits.clone(), low_rank_codes.errors.clone()
    for mode in (*DENSE, BFLOAT16):
        size = keys * values * mode + (16 * keys if mode in DENSE else 0)
        tried = (bits > size).nonzero().flatten()
        if len(tried):
            difference = rounded(scaled[tried], mode) - scaled[tried]
            if metric is not None:
                difference = metric[tried] @ difference
            error = relative(difference.flatten(1).norm(dim=1), search.norm[tried])
            met = error <= tolerance * _MARGIN
            chosen = tried[met]
            modes[chosen], bits[chosen], errors[chosen] = mode, float(size), error[met]
    exact = extreme | bits.isinf()
    modes[exact], errors[exact] = FLOAT32, 0.0
    return _collect(states, scaled, modes, exponents, low_rank_codes), errors


def _scale(states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Each head's state divided by a power of two, the exponents int8 [heads], and a bool [heads]:
    True where no exponent fits, and the state is set to 0. Refuses numbers that are not finite."""
    norms = torch.linalg.vector_norm(states, dim=(1, 2))
    exponents = torch.zeros(len(states), dtype=torch.int8, device=states.device)
    if bool(((norms > 2**-8) & (norms < 2**8)).all()):
        return states, exponents, exponents.bool()
    largest = torch.maximum(states.amax((1, 2)), -states.amin((1, 2)))
    if not bool(torch.isfinite(largest).all()):
        raise StatetrimError("a state holds numbers that are not finite, so it is not coded")
    needed = torch.frexp(largest).exponent
    extreme = needed.abs() > MAX_EXPONENT  # such a state is stored as it is
    exponents = torch.where(extreme, 0, needed).to(torch.int8)
    scaled = states * torch.exp2(-exponents.float()).reshape(-1, 1, 1)
    scaled[extreme] = 0
    return scaled, exponents, extreme


def _scale_by_power_of_two(metric: Tensor) -> Tensor:
    """The metric [heads, keys, keys] with a largest entry of each head from 0.5 to 1: divided by a
    power of two, so that no digit changes."""
    metric = metric.detach().double()
    mantissas, exponents = torch.frexp(metric)
    largest = metric.abs().amax((1, 2))
    if not bool((torch.isfinite(largest) & (largest > 0)).all()):
        raise StatetrimError("a metric is zero or holds numbers that are not finite")
    relative_exponents = exponents - torch.frexp(largest).exponent.reshape(-1, 1, 1)
    normalized: Tensor = torch.ldexp(mantissas, relative_exponents)
    return normalized


def rounded(states: Tensor, mode: int) -> Tensor:
    """States [heads, keys, values] as a dense mode decodes them."""
    if mode == BFLOAT16:
        return states.bfloat16().float()
    steps, codes = _round_rows(states, mode)
    decoded: Tensor = (codes.float() - (2 ** (mode - 1) - 1)) * steps.float().unsqueeze(-1)
    return decoded


def _round_rows(states: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Steps [heads, keys] and codes [heads, keys, values] of all numbers, a step per key."""
    top = 2 ** (bits - 1) - 1
    steps = (states.abs().amax(-1) / top).half()
    safe = torch.where(steps > 0, steps, 1).float().unsqueeze(-1)
    return steps, ((states / safe).round().clamp(-top, top) + top).byte()


def _collect(
    states: Tensor, scaled: Tensor, modes: Tensor, exponents: Tensor, low_rank_codes: LowRank
) -> HeadCodes:
    """The codes of the chosen mode of every head."""
    low_rank = modes == LOW_RANK
    used = (low_rank_codes.widths > 0) & low_rank.unsqueeze(1)
    heads = HeadCodes(
        keys=states.shape[1],
        values=states.shape[2],
        modes=modes,
        exponents=exponents,
        ranks=used.sum(1)[low_rank].byte(),
        widths=low_rank_codes.widths[used],
        steps=low_rank_codes.steps[used],
        codes=low_rank_codes.codes[used],
    )
    for bits in DENSE:
        if bool((modes == bits).any()):
            steps, row_codes = _round_rows(scaled[modes == bits], bits)
            heads.row_steps[bits], heads.row_codes[bits] = steps, row_codes
    for mode, dtype in PLAIN.items():
        if bool((modes == mode).any()):
            heads.plain[mode] = states[modes == mode].to(dtype)
    return heads
