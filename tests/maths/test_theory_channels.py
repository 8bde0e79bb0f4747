"""The paper's statements about channels: rotation, removal and selection.

They are numbered as in the table of `results/paper.md`, which also has the counterexamples to what
the paper says. A statement holds under the condition of its name or docstring, for any drawn input.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import silu

from helpers.rank_measures import rank_utilization
from helpers.reference import kda, linear_attention
from helpers.theory import (
    assert_equal,
    causal_conv,
    normal,
    orthogonal,
    scalar_decay_runs,
    seeds,
    sizes,
    tensor,
    tokens,
    top_directions,
)
from statetrim.maths.linalg import condition_number, strong_rrqr

# --- 7: change of basis ---------------------------------------------------------------------------


@given(seeds, sizes, sizes, sizes)
def test_statement_07_orthogonal_change_of_basis_leaves_the_outputs(
    seed: int, length: int, d_k: int, d_v: int
) -> None:
    """For linear attention and (gated) delta rules; the state becomes S T'."""
    x, turn = tokens(seed, length, d_k, d_v), orthogonal(seed + 9, d_k)
    turned = x._replace(q=x.q @ turn.T, k=x.k @ turn.T)
    for (outputs, states), (turned_outputs, turned_states) in zip(
        scalar_decay_runs(x), scalar_decay_runs(turned), strict=True
    ):
        assert_equal(turned_outputs, outputs)
        assert_equal(turned_states[-1], states[-1] @ turn.T)


@given(seeds, sizes, sizes, sizes)
def test_statement_07_per_channel_decay_allows_permutations_of_the_decay_too(
    seed: int, length: int, d_k: int, d_v: int
) -> None:
    x, decay = tokens(seed, length, d_k, d_v), -normal(seed + 7, length, d_k).sigmoid()
    order = torch.from_numpy(np.random.default_rng(seed).permutation(d_k))
    outputs, _ = kda(x.q, x.k, x.v, x.beta, decay)
    permuted, _ = kda(x.q[:, order], x.k[:, order], x.v, x.beta, decay[:, order])
    assert_equal(permuted, outputs)


@given(seeds, sizes, sizes, sizes)
def test_statement_07_scalar_decay_linear_attention_allows_any_invertible_map(
    seed: int, length: int, d_k: int, d_v: int
) -> None:
    x = tokens(seed, length, d_k, d_v)
    spread = torch.diag(torch.linspace(0.5, 2, d_k, dtype=torch.float64))
    change = orthogonal(seed + 8, d_k) @ spread @ orthogonal(seed + 9, d_k)
    outputs, _ = linear_attention(x.q, x.k, x.v, x.log_decay)
    changed, _ = linear_attention(x.q @ torch.linalg.inv(change), x.k @ change.T, x.v, x.log_decay)
    assert_equal(changed, outputs)


# --- 8: dropping channels -------------------------------------------------------------------------


@given(seeds, st.integers(1, 9), st.integers(2, 7), st.integers(1, 4))
def test_statement_08_selection_commutes_with_convolution_and_silu(
    seed: int, length: int, d_k: int, width: int
) -> None:
    x, taps = normal(seed, length, d_k), normal(seed + 1, d_k, width)
    kept = torch.from_numpy(np.random.default_rng(seed).permutation(d_k)[: d_k // 2])
    full = silu(causal_conv(x, taps))
    assert_equal(silu(causal_conv(x[:, kept], taps[kept])), full[:, kept])
    zeroed = torch.zeros(d_k, 1, dtype=torch.float64)
    zeroed[kept] = 1
    masked = silu(causal_conv(x * zeroed.T, taps * zeroed))
    assert_equal(masked, full * zeroed.T)  # silu(0) = 0


# --- 9: PCA and utilization -----------------------------------------------------------------------


@given(seeds, st.integers(1, 12), st.integers(2, 7), st.data())
def test_statement_09_uncentred_pca_never_lowers_the_utilization_of_the_keys(
    seed: int, length: int, d_k: int, data: st.DataObject
) -> None:
    """Without renormalising; any number of tokens."""
    keep = data.draw(st.integers(1, d_k - 1))
    keys = normal(seed, length, d_k) * torch.linspace(0.2, 1, d_k, dtype=torch.float64)
    projected = keys @ top_directions(keys, keep).T
    assert rank_utilization(projected) >= rank_utilization(keys) * (1 - 1e-9)


# --- 11, 12: strong RRQR --------------------------------------------------------------------------


def blocks(matrix: Tensor, keep: int) -> tuple[Tensor, Tensor, Tensor]:
    r = torch.linalg.qr(matrix, mode="complete").R
    return r[:keep, :keep], r[:keep, keep:], r[keep:, keep:]


def volume(matrix: Tensor) -> float:
    return float(torch.linalg.svdvals(matrix).prod())


@given(seeds, st.integers(2, 7), st.data())
def test_statement_11_the_swap_gain_is_exact(seed: int, n: int, data: st.DataObject) -> None:
    keep = data.draw(st.integers(1, n - 1))
    i, j = data.draw(st.integers(0, keep - 1)), data.draw(st.integers(keep, n - 1))
    matrix = normal(seed, n + 2, n)
    a, b, c = blocks(matrix, keep)
    inverse = torch.linalg.inv(a)
    coefficient = (inverse @ b)[i, j - keep]
    gain = torch.hypot(coefficient, c[:, j - keep].norm() * inverse[i].norm())
    order = list(range(n))
    order[i], order[j] = j, i
    ratio = volume(matrix[:, order[:keep]]) / volume(matrix[:, :keep])
    assert gain.item() == pytest.approx(ratio, rel=1e-7)


def test_statement_12_fails_strong_rrqr_does_not_minimise_the_condition() -> None:
    matrix = torch.diag(tensor([100, 1, 1]))
    kept = strong_rrqr(matrix.T @ matrix, 2).kept
    assert condition_number(matrix[:, kept]).item() == pytest.approx(100)
    assert condition_number(matrix[:, [1, 2]]).item() == pytest.approx(1)


# --- 13, 14: rotations and convolutions -----------------------------------------------------------


def lagged(signal: Tensor, width: int) -> Tensor:
    """[width, T, d]: a periodic signal and its past, lag by lag."""
    return torch.stack([signal.roll(lag, 0) for lag in range(width)])


def rotated_filter_errors(turned: Tensor, turn: Tensor, taps: Tensor) -> tuple[float, float]:
    """Squared error of the taps `(T * T) W`, and of least squares, in the turned basis."""
    width = taps.shape[1]
    wanted = torch.einsum("jtd,dj->td", lagged(turned @ turn, width), taps) @ turn.T
    mixed = torch.einsum("jtd,dj->td", lagged(turned, width), turn.square() @ taps)
    best = 0.0
    for channel in range(len(taps)):
        design = lagged(turned[:, [channel]], width)[:, :, 0].T
        fitted = design @ torch.linalg.pinv(design) @ wanted[:, channel]
        best += float((fitted - wanted[:, channel]).square().sum())
    return float((mixed - wanted).square().sum()), best


@given(seeds, st.integers(1, 4), st.integers(1, 3))
def test_statement_13_mixed_filters_are_optimal_if_uncorrelated_at_every_lag(
    seed: int, d: int, width: int
) -> None:
    """Each channel is the sum of two tones that no other channel has, over whole periods."""
    time, tone = torch.arange(32, dtype=torch.float64)[:, None], torch.arange(1, 2 * d + 1)
    tones = torch.cos(2 * math.pi * time * tone / 32 + normal(seed, 2 * d))
    turned = tones[:, :d] + 0.5 * tones[:, d:]
    mixed, best = rotated_filter_errors(turned, orthogonal(seed + 1, d), normal(seed + 2, d, width))
    assert mixed == pytest.approx(best, rel=1e-8, abs=1e-9)


def test_statement_13_fails_for_pca_when_a_channel_echoes_another() -> None:
    """Uncorrelated at lag 0, so the rotation is the PCA; but channel 2 is channel 1 delayed."""
    impulse = torch.eye(8, dtype=torch.float64)[:, 0]
    turned = torch.stack([impulse, 0.5 * impulse.roll(1)], 1)
    turn = tensor([[0.8, 0.6], [-0.6, 0.8]])
    original = turned @ turn
    assert_equal(turn @ (original.T @ original) @ turn.T, torch.diag(tensor([1, 0.25])))
    mixed, best = rotated_filter_errors(turned, turn, tensor([[1, 2], [3, -1]]))
    assert mixed > 1.3 * best > 0


@given(seeds, st.integers(1, 9), sizes, st.integers(1, 4))
def test_statement_14_a_shared_convolution_commutes_with_any_map(
    seed: int, length: int, d: int, width: int
) -> None:
    x, change, taps = normal(seed, length, d), normal(seed + 1, d, d), normal(seed + 2, width)
    shared = taps.expand(d, width)
    assert_equal(causal_conv(x @ change.T, shared), causal_conv(x, shared) @ change.T)
