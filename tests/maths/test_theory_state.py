"""The paper's statements about the state: its rank, noise and gradients.

They are numbered as in the table of `results/paper.md`, which also has the counterexamples to what
the paper says. A statement holds under the condition of its name or docstring, for any drawn input.
"""

import math

import numpy as np
import pytest
import scipy.integrate
import scipy.linalg
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import silu

from helpers.rank_measures import effective_rank, retrieval_error_bounds
from helpers.reference import linear_attention
from helpers.theory import (
    normal,
    normalized,
    orthogonal,
    outside_rows,
    scalar_decay_runs,
    seeds,
    sizes,
    tensor,
    tokens,
)
from statetrim.maths.linalg import condition_number

# --- 1: what the state can span -------------------------------------------------------------------


@given(seeds, sizes, sizes, sizes, sizes)
def test_statement_01_rank_of_the_state_is_bounded_by_keys_and_values(
    seed: int, length: int, d_k: int, d_v: int, key_rank: int
) -> None:
    """For linear attention and (gated) delta rules, at every token."""
    x = tokens(seed, length, d_k, d_v, key_rank)
    for _, states in scalar_decay_runs(x):
        for t, state in enumerate(states, start=1):
            assert outside_rows(state, x.k[:t]) < 1e-9
            assert outside_rows(state.T, x.v[:t]) < 1e-9
            rank_bound = min(int(torch.linalg.matrix_rank(m[:t], rtol=1e-10)) for m in (x.k, x.v))
            assert int(torch.linalg.matrix_rank(state, atol=1e-9)) <= rank_bound <= t


# --- 2: conditioning of the keys ------------------------------------------------------------------


def projected_values(keys: Tensor, values: Tensor) -> Tensor:
    return keys @ torch.linalg.pinv(keys, rtol=1e-10) @ values


@given(seeds, st.integers(1, 12), sizes, sizes, sizes)
def test_statement_02_effective_rank_is_at_least_nu_over_squared_condition(
    seed: int, length: int, d_k: int, d_v: int, key_rank: int
) -> None:
    """Linear attention; condition over nonzero singular values, values not orthogonal to keys."""
    x = tokens(seed, length, d_k, d_v, key_rank)
    state = linear_attention(x.q, x.k, x.v)[1][-1]
    nonzero = torch.linalg.svdvals(x.k)
    nonzero = nonzero[nonzero > 1e-10 * nonzero[0]]
    bound = effective_rank(projected_values(x.k, x.v)) * (nonzero[-1] / nonzero[0]).square()
    assert bound <= effective_rank(state) * (1 + 1e-6)


def test_statement_02_says_nothing_about_keys_as_layers_make_them() -> None:
    """The effective rank is never below 1. The bound is, for keys after SiLU and the L2 norm; it
    is not vacuous for every tall matrix: many isotropic keys raise it above 1."""
    for seed in range(0, 200, 2):
        values = normal(seed + 1, 256, 16)
        isotropic = normal(seed, 256, 16)
        layer_like = normalized(silu(isotropic @ normal(seed + 2, 16, 16)))
        bounds = [
            effective_rank(projected_values(keys, values)) / condition_number(keys) ** 2
            for keys in (layer_like, isotropic)
        ]
        assert bounds[0] < 0.5 and bounds[1] > 1.2


# --- 3, 4, 5: noise in the query ------------------------------------------------------------------


@given(seeds, sizes, sizes, st.floats(0, 6), st.floats(0, 1))
def test_statement_03_paper_bounds_hold_and_03b_sharper_ones_without_effective_rank(
    seed: int, d_v: int, d_k: int, decades: float, mix: float
) -> None:
    """Needs a nonzero output and nonzero noise; the upper bounds are finite if gamma > 0."""
    spread = 10 ** -(torch.linspace(0, decades, d_k, dtype=torch.float64))
    state = normal(seed, d_v, d_k) * spread @ orthogonal(seed + 1, d_k)
    query, noise = normal(seed + 2, d_k), normal(seed + 3, d_k)
    query = mix * query + (1 - mix) * torch.linalg.svd(state).Vh[0]
    error = retrieval_error_bounds(state, query, noise)
    clean, noisy = state @ query, state @ (query + noise)
    ratio = ((noisy - clean).norm() / clean.norm()) / (noise.norm() / query.norm())
    assert error.ratio == pytest.approx(float(ratio), rel=1e-6)
    slack = 1 + 1e-9
    assert error.paper_lower <= error.lower * slack
    assert error.lower <= error.ratio * slack
    assert error.ratio <= error.upper * slack
    assert error.upper <= error.paper_upper * slack
    assert error.effective_rank == pytest.approx(float(effective_rank(state)))


def test_statement_03b_bounds_without_effective_rank_are_attained() -> None:
    """So no bound in alignments alone is better, and the effective rank in the paper's is slack."""
    state = torch.diag(tensor([1, 1e-9, 1e-9, 1e-9]))
    query, noise = tensor([0.6, 0.8, 0, 0]), tensor([0.28, 0, 0.96, 0])
    along = retrieval_error_bounds(state, tensor([1, 0, 0, 0]), noise)
    assert along.ratio == pytest.approx(along.lower, rel=1e-9)
    across = retrieval_error_bounds(state, query, tensor([1, 0, 0, 0]))
    assert across.ratio == pytest.approx(across.upper, rel=1e-9)


def rms_error(state: Tensor, query: Tensor, scale: float) -> float:
    """Root mean square of the relative error under isotropic noise, by an exact cubature."""
    d_k = state.shape[1]
    points = torch.eye(d_k, dtype=torch.float64) * scale * math.sqrt(d_k)
    return float((points @ state.T).square().sum(1).mean().sqrt() / (state @ query).norm())


def mean_norm(singular: Tensor) -> float:
    """E|S n| for standard normal n.

    From `E sqrt(X) = integral of (1 - E exp(-s X)) s^-1.5 ds / (2 sqrt(pi))`, with s = e^x.
    """
    squares = singular.square().numpy()

    def integrand(log_s: float) -> float:
        laplace = math.exp(-0.5 * np.log1p(2 * math.exp(log_s) * squares).sum())
        return (1 - laplace) * math.exp(-log_s / 2)

    total, _ = scipy.integrate.quad(integrand, -60, 60, limit=400, points=[-20, 0, 20])
    return float(total) / (2 * math.sqrt(math.pi))


def gaussian_norm(d: int) -> float:
    """mu: mean length of a standard normal vector."""
    return math.sqrt(2) * math.exp(math.lgamma((d + 1) / 2) - math.lgamma(d / 2))


def test_the_mean_norm_quadrature_is_right() -> None:
    for d in (1, 2, 4, 16):
        assert mean_norm(torch.ones(d)) == pytest.approx(gaussian_norm(d), rel=1e-7)
    sampled = (normal(0, 200_000, 3) * tensor([3, 1, 0.1])).norm(dim=1).mean()
    assert mean_norm(tensor([3, 1, 0.1])) == pytest.approx(float(sampled), rel=5e-3)


@given(seeds, sizes, sizes, st.floats(1e-3, 1e3))
def test_statement_04_expected_error_bounds_with_and_without_mu(
    seed: int, d_v: int, d_k: int, scale: float
) -> None:
    state, query = normal(seed, d_v, d_k), normalized(normal(seed + 1, d_k))
    singular = torch.linalg.svdvals(state)
    clean = float((state @ query).norm())
    mean = scale * mean_norm(singular) / clean
    root = math.sqrt(float(effective_rank(state)))
    gamma = abs(float(torch.linalg.svd(state).Vh[0] @ query))
    slack = 1 + 1e-6
    assert math.sqrt(2 / math.pi) / root * scale <= mean * slack  # the paper's lower bound
    assert math.sqrt(2 / math.pi) * scale <= mean * slack  # holds without effective rank
    assert mean <= scale * root / gamma * slack  # holds without mu
    assert mean <= scale * root / gamma * gaussian_norm(min(d_v, d_k)) * slack
    exact = scale * root * float(singular[0]) / clean
    assert mean <= rms_error(state, query, scale) * slack
    assert rms_error(state, query, scale) == pytest.approx(exact, rel=1e-9)


@given(seeds, sizes, st.integers(0, 4), st.floats(1e-3, 1e3))
def test_statement_05_condition_number_bounds_the_error_when_d_v_is_at_least_d_k(
    seed: int, d_k: int, extra: int, scale: float
) -> None:
    """Full column rank. 05b, repaired: with an expectation and the noise level in it."""
    state, query = normal(seed, d_k + extra, d_k), normalized(normal(seed + 1, d_k))
    condition = float(condition_number(state))
    ratio = retrieval_error_bounds(state, query, normal(seed + 2, d_k)).ratio
    assert 1 / condition <= ratio * (1 + 1e-9) and ratio <= condition * (1 + 1e-9)
    mean = scale * mean_norm(torch.linalg.svdvals(state)) / float((state @ query).norm())
    expected = scale * gaussian_norm(d_k)
    assert expected / condition <= mean * (1 + 1e-6)
    assert mean <= condition * expected * (1 + 1e-6)


# --- 6: gradient of the query projection ----------------------------------------------------------


@given(seeds, sizes, sizes, sizes)
def test_statement_06_kronecker_condition_over_nonzero_singular_values(
    seed: int, d_v: int, d_k: int, hidden: int
) -> None:
    state, x = normal(seed, d_v, d_k), normal(seed + 1, 1, hidden)
    expanded = torch.kron(x, state)
    torch.testing.assert_close(
        condition_number(expanded), condition_number(state), rtol=1e-6, atol=0
    )
    if d_v <= d_k:  # then also over all of them
        singular, expanded_singular = (torch.linalg.svdvals(m) for m in (state, expanded))
        torch.testing.assert_close(expanded_singular, singular * x.norm())


# --- 10: effective rank ---------------------------------------------------------------------------


@given(seeds, sizes, sizes, sizes, st.floats(1e-6, 1e6))
def test_statement_10_effective_rank_lies_between_one_and_rank_and_bounds_the_condition(
    seed: int, rows: int, columns: int, inner: int, scale: float
) -> None:
    """Condition over nonzero singular values; unchanged by transposing, turning, scaling."""
    matrix = normal(seed, rows, inner) @ normal(seed + 1, inner, columns)
    singular = torch.linalg.svdvals(matrix)
    singular = singular[singular > 1e-10 * singular[0]]
    rank, er = len(singular), effective_rank(matrix).item()
    assert 1 - 1e-9 <= er <= rank * (1 + 1e-9)
    assert float(singular[0] / singular[-1]) ** 2 >= rank / er * (1 - 1e-9)
    for other in (matrix.T, matrix * scale, orthogonal(seed + 2, rows) @ matrix):
        assert effective_rank(other).item() == pytest.approx(er, rel=1e-9)
