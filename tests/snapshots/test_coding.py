"""States in fewer bytes: the bound holds on what is decoded, in real bytes."""

import math
import re
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from torch import Tensor

from statetrim.errors import StatetrimError
from statetrim.snapshots import low_rank
from statetrim.snapshots.coding import Coded, decode, encode
from statetrim.snapshots.layout import (
    FLOAT32,
    LOW_RANK,
    HeadCodes,
    pack,
    packed_size,
    unpack,
    write,
)

FLOOR, GRID = 0.02, range(-4, 41)


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


def decaying(heads: int, keys: int, values: int, rank: float = 3.0, seed: int = 0) -> Tensor:
    """States whose singular values fall like exp(-i / rank)."""
    generator = torch.Generator().manual_seed(seed)
    count = min(keys, values)
    left = torch.linalg.qr(torch.randn(heads, keys, count, generator=generator)).Q
    right = torch.linalg.qr(torch.randn(heads, values, count, generator=generator)).Q
    return (left * torch.exp(-torch.arange(count) / rank)) @ right.mT


def metric_for(heads: int, keys: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(heads, 3 * keys, keys, generator=generator) * torch.linspace(0.3, 2, keys)
    return torch.linalg.cholesky(rows.mT @ rows / keys, upper=True)


def measure(states: Tensor, decoded: Tensor, metric: Tensor | None = None) -> Tensor:
    """The relative error [heads] of decoded states in the metric, float64."""
    exact, error = states.double(), decoded.double() - states.double()
    if metric is not None:
        exact, error = metric.double() @ exact, metric.double() @ error
    return error.flatten(1).norm(dim=1) / exact.flatten(1).norm(dim=1).clamp_min(1e-300)


@settings(max_examples=60, deadline=None)
@given(
    sizes=some.tuples(some.integers(1, 5), some.integers(1, 40), some.integers(1, 40)),
    rank=some.sampled_from([0, 1, 3, 40]),
    exponent=some.integers(-149, 126),
    tolerance=some.floats(1e-4, 0.5),
    weighted=some.booleans(),
    seed=some.integers(0, 99),
)
def test_the_bound_holds(
    sizes: tuple[int, int, int],
    rank: int,
    exponent: int,
    tolerance: float,
    weighted: bool,
    seed: int,
) -> None:
    """Random, rank-deficient, zero, huge, tiny, non-square states, whose heads differ in size."""
    heads, keys, values = sizes
    generator = torch.Generator().manual_seed(seed)
    left = torch.randn(heads, keys, rank, generator=generator, dtype=torch.float64)
    right = torch.randn(heads, rank, values, generator=generator, dtype=torch.float64)
    spread = 10.0 ** -torch.arange(heads).double().reshape(-1, 1, 1)
    scale = 2.0 ** (exponent - 5)
    states = (spread * (left @ right) * scale).clamp(-3e38, 3e38).float()
    metric = metric_for(heads, keys) if weighted else None
    coded = encode(states, tolerance, metric)
    errors = measure(states, decode(coded), metric)
    assert bool((errors <= tolerance).all()), errors
    assert coded.nbytes <= heads * (keys * values * 4 + 3) + 8
    again = Coded(coded.shape, coded.payload.clone())
    assert torch.equal(decode(again), decode(coded))
    assert torch.equal(write(again.codes), coded.payload)
    assert torch.equal(encode(states, tolerance, metric).payload, coded.payload)


ONES = torch.ones(1, 2, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *(((ONES * value,), "finite") for value in (math.nan, math.inf)),
        *(((torch.zeros(s),), f"not {[*s]} of") for s in ((4,), (3, 4), (0, 3, 4), (2, 0, 4))),
        *(((ONES, tolerance), f"not {tolerance}") for tolerance in (0.0, 1.0, math.nan)),
        ((ONES, 0.05, torch.ones(1, 3, 3)), "shape [1, 3, 3] does not fit"),
        *(((ONES, 0.05, ONES * value), "metric is zero or") for value in (0, math.nan, math.inf)),
    ],
)
def test_what_cannot_be_coded_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(StatetrimError, match=re.escape(message)):
        encode(*arguments)


def test_the_scale_of_a_metric_does_not_matter() -> None:
    """Bytes stay equal over sixty decades, and errors are those of float64."""
    states, metric = decaying(3, 24, 16, rank=6), metric_for(3, 24).double()
    plain = encode(states, 0.05, metric)
    for decade in range(-30, 31, 2):
        coded = encode(states, 0.05, metric * 2.0 ** round(decade * math.log2(10)))
        assert torch.equal(coded.payload, plain.payload), decade
    errors = measure(states, decode(plain), metric)
    torch.testing.assert_close(plain.errors, errors.float(), rtol=1e-4, atol=0)


@pytest.mark.parametrize("decade", [-300, -40, -23, -9, 9, 19, 37, 300])
@pytest.mark.parametrize("seen", [1.0, 1e-3, 1e-6, 1e-12, 1e-25])
def test_the_bound_holds_in_any_metric(decade: int, seen: float) -> None:
    """Of which the last key channel counts as `seen`, and states that lie in it mostly."""
    states = decaying(2, 16, 12)
    states[1, :-1] *= seen
    weights = torch.cat([torch.ones(15), torch.tensor([seen])]).double()
    turn = torch.linalg.qr(metric_for(1, 16).double()).Q
    for unit in (torch.diag(weights)[None], turn @ torch.diag(weights)):
        coded = encode(states, 0.05, unit * 10.0**decade)
        errors = measure(states, decode(coded), unit)
        assert bool((errors <= 0.05).all()), errors
        torch.testing.assert_close(coded.errors, errors.float(), rtol=1e-2, atol=1e-6)
        smaller = states / (200 * states.flatten(1).norm(dim=1).reshape(-1, 1, 1))
        modes = encode(smaller, 0.05, unit * 10.0**decade).codes.modes
        assert torch.equal(modes == FLOAT32, coded.codes.modes == FLOAT32)


@pytest.mark.parametrize("heads", [64, 65, 128, 129])
def test_groups_of_heads_are_joined(heads: int) -> None:
    """64 heads are coded at a time; of each kind of code, in every group."""
    states = torch.randn(heads, 8, 8, generator=torch.Generator().manual_seed(0))
    states[::2] = decaying(heads, 8, 8, rank=1)[::2]
    coded = encode(states, 0.05)
    assert bool((measure(states, decode(coded)) <= 0.05).all())
    assert len(coded.codes.modes.unique()) > 1
    singles = torch.cat([decode(encode(state[None], 0.05)) for state in states])
    torch.testing.assert_close(decode(coded), singles)


def test_a_state_below_the_floor_is_coded_as_finely_as_the_grid_goes() -> None:
    """A second component that only the finest of all thresholds keeps: 2^-10 of the bound."""
    sizes = torch.tensor([1.0, 0.7 * 0.1 * 2.0**-9.9])
    rows = torch.linalg.qr(torch.randn(2, 64, 2, generator=torch.Generator().manual_seed(0))).Q
    state = (rows[0] * sizes) @ rows[1].mT
    assert encode(state[None], 0.1).codes.ranks.tolist() == [2]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("tolerance", [0.02, 0.05, 0.1])
def test_as_small_as_an_exhaustive_search_in_float64(tolerance: float, weighted: bool) -> None:
    states = decaying(4, 32, 24)
    metric = metric_for(4, 32) if weighted else torch.eye(32).repeat(4, 1, 1)
    for state, weight in zip(states, metric, strict=True):
        coded = encode(state[None], tolerance, weight[None])
        assert coded.codes.modes.tolist() == [LOW_RANK]
        best = low_rank_bits(state, tolerance, weight)
        assert 0.97 * best <= 8 * (coded.nbytes - 3) <= 1.12 * best + 64


def test_the_bound_counts_rounding() -> None:
    """Of rank one, so nothing is cut off: only rounding to 8 bits can break this bound."""
    state = decaying(1, 64, 64, rank=0.02)
    tight, loose = encode(state, 0.002), encode(state, 0.02)
    assert loose.codes.modes.tolist() == [LOW_RANK]
    assert tight.codes.modes.tolist() != [LOW_RANK]
    assert float(measure(state, decode(tight))) <= 0.002


def test_every_mode_is_the_cheapest_that_will_do() -> None:
    """White noise has no low rank, so a tighter bound takes more bits, up to all of them."""
    noise = torch.randn(1, 64, 64, generator=torch.Generator().manual_seed(0))
    modes = [encode(noise, t).codes.modes.item() for t in (0.15, 0.07, 0.03, 0.01, 0.003, 0.0001)]
    assert modes == [4, 5, 6, 8, 16, 32]  # bits, as files of the format state them
    assert torch.equal(decode(encode(noise, 0.0001)), noise)


def test_a_state_of_one_component_is_not_coded_too_coarsely() -> None:
    """One strong component and a weak tail: the floor keeps the tail."""
    state = decaying(1, 64, 64, rank=0.02) + 0.001 * decaying(1, 64, 64, rank=8, seed=5)
    coded = encode(state, 0.1)
    assert coded.nbytes >= 0.02 * 64 * 64 * 4
    assert float(measure(state, decode(coded))) < 0.02


def test_wide_states_are_sketched_and_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the exact fallback a state of full rank takes more bytes; the bound holds anyway."""
    easy, hard = decaying(5, 128, 128), decaying(3, 128, 128, rank=40)
    easy[3:] = easy[3:, :, :1] @ easy[3:, :1]
    easy[4] = 0
    metric = metric_for(5, 128)
    sketched = encode(easy, 0.05, metric)
    assert bool((measure(easy, decode(sketched), metric) <= 0.05).all())
    exact = encode(hard, 0.2)
    monkeypatch.setattr(low_rank, "_MIN_SKETCHED", 1000)
    assert sketched.nbytes <= 1.1 * encode(easy, 0.05, metric).nbytes
    assert exact.nbytes == pytest.approx(encode(hard, 0.2).nbytes, rel=0.02)


@pytest.mark.parametrize("shape", [(100, 1000), (1000, 100)])
@pytest.mark.parametrize("tolerance", [0.3, 1e-3, 1e-4])
def test_long_states_keep_the_bound(shape: tuple[int, int], tolerance: float) -> None:
    """Heads of low and of full rank together: a subspace is larger than the shorter side."""
    states = torch.cat([decaying(2, *shape), decaying(2, *shape, rank=40)])
    states[0] = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    assert bool((measure(states, decode(encode(states, tolerance))) <= tolerance).all())


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("count", [0, 1, 8, 37])
def test_packing_is_exact(bits: int, count: int) -> None:
    codes = torch.randint(2**bits, (count,), generator=torch.Generator().manual_seed(bits)).byte()
    packed = pack(codes, bits)
    assert len(packed) == packed_size(count, bits)
    assert torch.equal(unpack(packed, count, bits), codes)


@pytest.mark.parametrize("change", ["cut", "longer", "mode", "exponent", "width", "step"])
def test_damaged_bytes_are_refused(change: str) -> None:
    states = decaying(2, 16, 16)
    coded = encode(states, 0.1)
    payload = coded.payload.clone()
    place = {"mode": 0, "exponent": 2, "width": 6}.get(change)
    if change == "cut":
        payload = payload[:-1]
    elif change == "longer":
        payload = torch.cat([payload, payload[:1]])
    elif change == "step":
        steps = 6 + packed_size(int(coded.codes.ranks.sum()), 4)
        payload[steps : steps + 2] = 255  # not a number
    else:
        payload[place] = 120
    with pytest.raises(StatetrimError):
        decode(Coded(coded.shape, payload))


def test_more_components_than_channels_are_refused() -> None:
    """All arrays fit, but one head of many components would give every head that much memory."""
    for rank in (2, 3):
        ranks, widths = torch.tensor([rank]).byte(), torch.full((rank,), 3).byte()
        zero = torch.zeros(1, dtype=torch.uint8)
        codes = torch.full((rank, 6), 3).byte()
        heads = HeadCodes(4, 2, zero, zero.char(), ranks, widths, torch.ones(rank).half(), codes)
        coded = Coded((1, 4, 2), write(heads))
        if rank == 2:
            assert torch.equal(decode(coded), torch.zeros(1, 4, 2))
        else:
            with pytest.raises(StatetrimError, match="its ranks do not fit"):
                decode(coded)
