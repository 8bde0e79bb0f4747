"""The paper's statements, by their number in the table of `docs/the-maths.md`.

`test_statement_NN_...` holds under the condition its name or docstring gives, for any drawn input.
`test_statement_NN_fails_...` stores a counterexample to what the paper (or its wording) says.
`test_identity_...` are the exact identities our own code relies on.
"""

import math
from typing import NamedTuple

import numpy as np
import pytest
import scipy.integrate
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import silu

from helpers.reference import Run, delta_rule, gated_delta_rule, kda, linear_attention
from statetrim.maths.linalg import (
    condition_number,
    effective_rank,
    rank_utilization,
    retrieval_error_bounds,
    strong_rrqr,
)

# Drawn the same way on every run, so a failure here is a failure everywhere.
settings.register_profile("theory", max_examples=60, deadline=None, derandomize=True, database=None)
settings.load_profile("theory")

seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(1, 7)


def tensor(rows: list[list[float]] | list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(
        shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed % 2**63)
    )


def orthogonal(seed: int, n: int) -> Tensor:
    return torch.linalg.qr(normal(seed, n, n)).Q


def normalized(rows: Tensor, eps: float = 0.0) -> Tensor:
    return rows * (rows.square().sum(-1, keepdim=True) + eps).rsqrt()


def assert_equal(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-8, atol=1e-9)


class Tokens(NamedTuple):
    q: Tensor
    k: Tensor
    v: Tensor
    beta: Tensor
    log_decay: Tensor


def tokens(seed: int, length: int, d_k: int, d_v: int, key_rank: int = 99) -> Tokens:
    """Unit keys from a subspace of at most `key_rank` dimensions, decays between 0.4 and 1."""
    rank = min(key_rank, d_k)
    return Tokens(
        q=normalized(normal(seed, length, d_k)),
        k=normalized(normal(seed + 1, length, rank) @ normal(seed + 2, rank, d_k)),
        v=normal(seed + 3, length, d_v),
        beta=normal(seed + 4, length).sigmoid(),
        log_decay=-normal(seed + 5, length).sigmoid(),
    )


def scalar_decay_runs(x: Tokens) -> list[Run]:
    """Every recurrence whose decay, if any, is one number per token."""
    return [
        linear_attention(x.q, x.k, x.v),
        linear_attention(x.q, x.k, x.v, x.log_decay),
        delta_rule(x.q, x.k, x.v, x.beta),
        gated_delta_rule(x.q, x.k, x.v, x.beta, x.log_decay),
    ]


def outside_rows(matrix: Tensor, basis_rows: Tensor) -> float:
    """Largest part of the rows of `matrix` outside the row space of `basis_rows`."""
    inside = matrix @ torch.linalg.pinv(basis_rows, rtol=1e-10) @ basis_rows
    return float((matrix - inside).abs().max())


def causal_conv(x: Tensor, taps: Tensor) -> Tensor:
    """Depthwise: `x` [T, d], `taps` [d, width], lag j weighted by `taps[:, j]`."""
    padded = torch.cat([torch.zeros(taps.shape[1] - 1, x.shape[1], dtype=x.dtype), x])
    last = taps.shape[1] - 1
    return sum(
        (padded[last - j : last - j + len(x)] * taps[:, j] for j in range(taps.shape[1])),
        torch.zeros_like(x),
    )


def top_directions(rows: Tensor, count: int) -> Tensor:
    """PCA without centring: [count, d], eigenvectors of the largest second moments."""
    return torch.linalg.eigh(rows.T @ rows).eigenvectors.T.flip(0)[:count]


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


def test_statement_01_fails_for_per_channel_decay() -> None:
    key = normalized(tensor([[1, 1], [1, 1]]))
    decay = tensor([[1.0, 0.1], [1.0, 0.1]]).log()
    values = torch.eye(2, dtype=torch.float64)
    _, states = kda(key, key, values, torch.ones(2, dtype=torch.float64), decay)
    assert torch.linalg.matrix_rank(key) == 1
    assert torch.linalg.matrix_rank(states[-1]) == 2
    _, states = linear_attention(key, key, values, decay)
    assert torch.linalg.matrix_rank(states[-1]) == 2


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
    is not vacuous for every tall matrix: many isotropic keys bring it above 1."""
    for seed in range(0, 200, 2):
        values = normal(seed + 1, 256, 16)
        isotropic = normal(seed, 256, 16)
        layer_like = normalized(silu(isotropic @ normal(seed + 2, 16, 16)))
        bounds = [
            effective_rank(projected_values(keys, values)) / condition_number(keys) ** 2
            for keys in (layer_like, isotropic)
        ]
        assert bounds[0] < 0.5 and bounds[1] > 1.2


def test_statement_02b_fails_nu_depends_on_the_keys_too() -> None:
    values = tensor([[1, 0], [0, 1], [0, 1]])
    first, second = tensor([[1, 0], [0, 1], [0, 0]]), tensor([[1, 0], [0, 1], [0, 1]])
    assert effective_rank(projected_values(first, values)).item() == pytest.approx(2.0)
    assert effective_rank(projected_values(second, values)).item() == pytest.approx(1.5)


def test_statement_02c_fails_better_conditioned_keys_can_lower_the_effective_rank() -> None:
    values = torch.diag(tensor([1, 10]))
    worse, better = torch.diag(tensor([10, 1])), torch.eye(2, dtype=torch.float64)
    assert condition_number(better) < condition_number(worse)
    ranks = [
        effective_rank(linear_attention(keys, keys, values)[1][-1]).item()
        for keys in (worse, better)
    ]
    assert ranks == pytest.approx([2.0, 1.01])


# --- 3, 4, 5: noise in the query ------------------------------------------------------------------


@given(seeds, sizes, sizes, st.floats(0, 6), st.floats(0, 1))
def test_statement_03_paper_bounds_hold_and_03b_sharper_ones_without_effective_rank(
    seed: int, d_v: int, d_k: int, decades: float, mix: float
) -> None:
    """Needs a clean output and noise; the upper bounds say something if gamma > 0."""
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


def test_statement_03c_fails_low_utilization_need_not_amplify_noise() -> None:
    query = torch.eye(16, dtype=torch.float64)[0]
    low = torch.diag(torch.cat([tensor([1.0]), torch.full((15,), math.sqrt(0.04 / 15)).double()]))
    isotropic = torch.eye(16, dtype=torch.float64)
    assert rank_utilization(low) < 0.07 < rank_utilization(isotropic)
    assert rms_error(low, query, 1.0) == pytest.approx(1.02, abs=5e-3)
    assert rms_error(isotropic, query, 1.0) == pytest.approx(4.0)


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


def test_statement_05_fails_both_ways_when_the_state_has_a_null_space() -> None:
    state = tensor([[1, 0]])
    assert condition_number(state) == 1
    unheard = retrieval_error_bounds(state, tensor([1, 0]), tensor([0, 1]))
    assert unheard.ratio == 0.0  # below 1 / condition
    faint = retrieval_error_bounds(state, tensor([0.01, 1]), tensor([1, 0]))
    assert faint.ratio > 100  # above the condition


def test_statement_05_fails_to_be_tighter_than_the_theorem() -> None:
    state = torch.diag(tensor([1, 1e-3]))
    error = retrieval_error_bounds(state, tensor([1, 0]), tensor([0.6, 0.8]))
    assert condition_number(state).item() == pytest.approx(1000)
    assert error.paper_upper == pytest.approx(1.0, abs=1e-6)


def test_statement_05b_fails_as_printed() -> None:
    """No noise level in it: the identity with noise 0.01 errs by 0.0188, not by mu = 1.88."""
    mean = 0.01 * mean_norm(torch.ones(4))
    assert mean == pytest.approx(0.0188, abs=1e-4)
    assert mean < gaussian_norm(4) == pytest.approx(1.88, abs=1e-3)


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


def test_statement_06_fails_over_all_singular_values_when_d_v_exceeds_d_k() -> None:
    state, x = tensor([[1], [0]]), tensor([[1, 1]])
    assert torch.linalg.cond(state) == 1
    assert torch.linalg.svdvals(torch.kron(x, state))[-1] == 0


# --- 7: change of basis ---------------------------------------------------------------------------


@given(seeds, sizes, sizes, sizes)
def test_statement_07_orthogonal_change_of_basis_leaves_the_outputs(
    seed: int, length: int, d_k: int, d_v: int
) -> None:
    """Linear attention and (gated) delta rules; the state turns along, S T'."""
    x, turn = tokens(seed, length, d_k, d_v), orthogonal(seed + 9, d_k)
    turned = x._replace(q=x.q @ turn.T, k=x.k @ turn.T)
    for (outputs, states), (turned_outputs, turned_states) in zip(
        scalar_decay_runs(x), scalar_decay_runs(turned), strict=True
    ):
        assert_equal(turned_outputs, outputs)
        assert_equal(turned_states[-1], states[-1] @ turn.T)


def test_statement_07_fails_for_per_channel_decay() -> None:
    x, turn = tokens(0, 8, 4, 3), orthogonal(9, 4)
    decay = -normal(7, 8, 4).sigmoid()
    outputs, _ = kda(x.q, x.k, x.v, x.beta, decay)
    turned, _ = kda(x.q @ turn.T, x.k @ turn.T, x.v, x.beta, decay)
    assert (turned - outputs).norm() > 0.05 * outputs.norm()


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


@given(seeds, st.integers(1, 6))
def test_statement_07b_the_transformed_transition_carries_beta(seed: int, d_k: int) -> None:
    """The paper prints it without; equal only at beta = 1."""
    key, beta = normalized(normal(seed, d_k)), 0.3
    eye = torch.eye(d_k, dtype=torch.float64)
    spread = torch.diag(torch.linspace(0.5, 2, d_k, dtype=torch.float64))
    change = orthogonal(seed + 1, d_k) @ spread
    inverse = torch.linalg.inv(change)
    transition = inverse.T @ (eye - beta * torch.outer(key, key)) @ change.T
    rank_one = torch.outer(inverse.T @ key, change @ key)
    assert_equal(transition, eye - beta * rank_one)
    assert (transition - (eye - rank_one)).abs().max() > 1e-3


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


def test_statement_08_fails_for_the_l2_norm() -> None:
    key = tensor([[3, 4]])
    assert_equal(normalized(key)[:, :1], tensor([[0.6]]))
    assert_equal(normalized(key[:, :1]), tensor([[1.0]]))


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


def test_statement_09_fails_with_centring() -> None:
    """The mean fills one direction as full as the widest; centring does not see it and drops it."""
    wide, narrow = math.sqrt(2), 0.1
    keys = tensor([[wide, 0, 1], [-wide, 0, 1], [0, narrow, 1], [0, -narrow, 1]])
    projected = keys @ top_directions(keys - keys.mean(0), 2).T
    assert rank_utilization(keys).item() == pytest.approx(0.668, abs=1e-3)
    assert rank_utilization(projected).item() == pytest.approx(0.5025, abs=1e-3)


def test_statement_09_fails_with_renormalised_keys() -> None:
    """Keys along the dropped direction lean a little on the first, and fall on it entirely."""
    lean = 0.1
    rest = math.sqrt(1 - lean**2)
    keys = tensor(
        [[1, 0, 0]] * 10 + [[0, 1, 0]] * 10 + [[lean, 0, rest]] * 4 + [[-lean, 0, rest]] * 4
    )
    projected = keys @ top_directions(keys, 2).T
    assert rank_utilization(projected) > rank_utilization(keys)
    assert rank_utilization(keys).item() == pytest.approx(0.926, abs=1e-3)
    assert rank_utilization(normalized(projected)).item() == pytest.approx(28 / 36)


@given(seeds, st.integers(2, 7), st.data())
def test_statement_09b_fails_pca_always_lowers_the_effective_rank(
    seed: int, d_k: int, data: st.DataObject
) -> None:
    """Whenever it drops anything at all; the algebraic rank falls as well."""
    keep = data.draw(st.integers(1, d_k - 1))
    keys = normal(seed, d_k + 5, d_k)
    projected = keys @ top_directions(keys, keep).T
    assert effective_rank(projected) < effective_rank(keys)
    assert torch.linalg.matrix_rank(projected) == keep < torch.linalg.matrix_rank(keys) == d_k


def test_statement_09c_fails_pruning_keys_can_lower_the_utilization_of_the_state() -> None:
    """d_v = d_k' = 2. The second-loudest key channel carries nothing; the third does."""
    keys = torch.diag(tensor([1.0, 0.95, 0.9]))
    values = tensor([[1, 0], [0, 0], [0, 1 / 0.9]])
    assert top_directions(keys, 2).abs().argmax(1).tolist() == [0, 1]
    before = linear_attention(keys, keys, values)[1][-1]
    pruned = keys[:, :2]
    after = linear_attention(pruned, pruned, values)[1][-1]
    assert rank_utilization(before).item() == pytest.approx(1.0)
    assert rank_utilization(after).item() == pytest.approx(0.5)


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
    """Channels that are each two tones of their own, over whole periods."""
    time, tone = torch.arange(32, dtype=torch.float64)[:, None], torch.arange(1, 2 * d + 1)
    tones = torch.cos(2 * math.pi * time * tone / 32 + normal(seed, 2 * d))
    turned = tones[:, :d] + 0.5 * tones[:, d:]
    mixed, best = rotated_filter_errors(turned, orthogonal(seed + 1, d), normal(seed + 2, d, width))
    assert mixed == pytest.approx(best, rel=1e-8, abs=1e-9)


def test_statement_13_fails_for_pca_when_a_channel_echoes_another() -> None:
    """Uncorrelated at lag 0, so the turn is the PCA; but channel 2 is channel 1 a token later."""
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


def test_statement_14_fails_for_the_layer_because_of_silu() -> None:
    quarter_turn, x = tensor([[0, -1], [1, 0]]), tensor([[1, 1]])
    difference = silu(x @ quarter_turn.T) - silu(x) @ quarter_turn.T
    assert difference.norm() > 0.4 * silu(x).norm()


# --- identities: the recurrences ------------------------------------------------------------------


@given(seeds, sizes, st.integers(2, 6), sizes)
def test_identity_reduced_model_is_the_full_model_on_projected_tokens(
    seed: int, length: int, d_k: int, d_v: int
) -> None:
    """And its state is S T' for linear attention, decayed or not; not so for delta rules."""
    x, keep = tokens(seed, length, d_k, d_v), max(1, d_k // 2)
    t = orthogonal(seed + 9, d_k)[:keep]
    reduced = scalar_decay_runs(x._replace(q=x.q @ t.T, k=x.k @ t.T))
    projected = scalar_decay_runs(x._replace(q=x.q @ t.T @ t, k=x.k @ t.T @ t))
    for (outputs, _), (expected, _) in zip(reduced, projected, strict=True):
        assert_equal(outputs, expected)
    full = scalar_decay_runs(x)
    for run in (0, 1):
        assert_equal(reduced[run][1][-1], full[run][1][-1] @ t.T)


def test_identity_reduced_delta_rule_state_is_not_the_projected_state() -> None:
    x = tokens(0, 6, 4, 3)
    full = delta_rule(x.q, x.k, x.v, x.beta)[1][-1]
    reduced = delta_rule(x.q[:, :2], x.k[:, :2], x.v, x.beta)[1][-1]
    assert (reduced - full[:, :2]).norm() > 0.1 * full.norm()


@given(seeds, st.integers(1, 9), st.integers(2, 7), sizes, st.data())
def test_identity_projection_is_lossless_when_it_holds_all_keys_and_queries(
    seed: int, length: int, d_k: int, d_v: int, data: st.DataObject
) -> None:
    """Applied before the L2 norm; at full width any orthogonal matrix will do."""
    rank = data.draw(st.integers(1, d_k))
    x, subspace = tokens(seed, length, d_k, d_v), normal(seed + 6, rank, d_k)
    q, k = normal(seed + 7, length, rank) @ subspace, normal(seed + 8, length, rank) @ subspace
    t = top_directions(torch.cat([q, k]), rank)
    full = x._replace(q=normalized(q), k=normalized(k))
    reduced = x._replace(q=normalized(q @ t.T), k=normalized(k @ t.T))
    for (outputs, _), (expected, _) in zip(
        scalar_decay_runs(reduced), scalar_decay_runs(full), strict=True
    ):
        assert_equal(outputs, expected)


@given(seeds, sizes, st.integers(2, 6), sizes)
def test_identity_renormalising_a_key_only_raises_the_write_strength(
    seed: int, length: int, d_k: int, d_v: int
) -> None:
    """Key c k' with beta, value v = unit key k' with beta c^2, value v / c; decayed or not."""
    x, keep = tokens(seed, length, d_k, d_v), max(1, d_k // 2)
    short, q = x.k[:, :keep], x.q[:, :keep]
    c = short.norm(dim=1)
    plain = gated_delta_rule(q, short, x.v, x.beta, x.log_decay)
    renormalised = gated_delta_rule(
        q, normalized(short), x.v / c[:, None], x.beta * c.square(), x.log_decay
    )
    assert_equal(renormalised[0], plain[0])
    assert_equal(renormalised[1][-1], plain[1][-1])
    gram = x.k.T @ x.k
    assert_equal(c.square().mean(), gram.diagonal()[:keep].sum() / length)


def rms_norm(x: Tensor, eps: float) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt()


@given(seeds, sizes, st.integers(2, 8), sizes, st.floats(1e-6, 1e-1))
def test_identity_sliced_model_is_the_zeroed_model_with_a_smaller_norm_eps(
    seed: int, length: int, d_k: int, d_v: int, eps: float
) -> None:
    x, keep = tokens(seed, length, d_k, d_v), max(1, d_k // 2)
    mask = (torch.arange(d_k) < keep).double()
    sliced, _ = delta_rule(
        normalized(x.q[:, :keep], 1e-6), normalized(x.k[:, :keep], 1e-6), x.v, x.beta
    )
    zeroed, _ = delta_rule(normalized(x.q * mask, 1e-6), normalized(x.k * mask, 1e-6), x.v, x.beta)
    assert_equal(rms_norm(sliced * keep**-0.5, eps), rms_norm(zeroed * d_k**-0.5, eps * keep / d_k))


@given(seeds, sizes, sizes, sizes, sizes)
def test_identity_states_inside_a_chunk_from_one_triangular_solve(
    seed: int, before: int, length: int, d_k: int, d_v: int
) -> None:
    x = tokens(seed, before + length, d_k, d_v)
    _, states = gated_delta_rule(*x)
    start, chunk = states[before - 1], Tokens(*(part[before:] for part in x))
    g = chunk.log_decay.cumsum(0)
    decay = (g[:, None] - g[None, :]).exp()
    eye, beta = torch.eye(length, dtype=torch.float64), chunk.beta[:, None]
    system = eye + beta * ((chunk.k @ chunk.k.T) * decay).tril(-1)
    y = torch.linalg.solve(system, beta * (chunk.v - g.exp()[:, None] * (chunk.k @ start.T)))
    for t in range(length):
        writes = (decay[t, : t + 1, None] * y[: t + 1]).T @ chunk.k[: t + 1]
        assert_equal(g[t].exp() * start + writes, states[before + t])


@given(seeds, sizes, sizes, sizes)
def test_identity_frobenius_norm_of_the_state_step_by_step(
    seed: int, length: int, d_k: int, d_v: int
) -> None:
    x = tokens(seed, length, d_k, d_v)
    _, states = gated_delta_rule(*x)
    previous, square = torch.zeros(d_v, d_k, dtype=torch.float64), tensor([0.0])[0]
    for t, state in enumerate(states):
        alpha, key = x.log_decay[t].exp(), x.k[t]
        u = x.beta[t] * (x.v[t] - alpha * previous @ key)
        assert_equal(state, alpha * previous + torch.outer(u, key))
        square = (
            alpha**2 * square
            + 2 * alpha * (u @ previous @ key)
            + u.square().sum() * key.square().sum()
        )
        assert_equal(square, state.square().sum())
        previous = state


# --- identities: statistics for selection ---------------------------------------------------------


@given(seeds, sizes, st.integers(2, 6), sizes)
def test_identity_readout_gram_is_the_exact_error_of_dropping_channels_at_readout(
    seed: int, length: int, d_k: int, d_v: int
) -> None:
    x = tokens(seed, length, d_k, d_v)
    outputs, states = delta_rule(x.q, x.k, x.v, x.beta)
    dropped = (torch.arange(d_k) >= d_k // 2).double()
    gram = torch.zeros(d_k, d_k, dtype=torch.float64)
    error = torch.zeros((), dtype=torch.float64)
    for q, output, state in zip(x.q, outputs, states, strict=True):
        gram += torch.outer(q, q) * (state.T @ state) / output.square().sum()
        kept_output = state @ (q * (1 - dropped))
        error += (output - kept_output).square().sum() / output.square().sum()
    torch.testing.assert_close(dropped @ gram @ dropped, error, rtol=1e-7, atol=1e-9)


def mask_gradient(seed: int, length: int, d_k: int, eps: float) -> Tensor:
    """Gradient of a loss in a mask on the channels of q and k ahead of their L2 norm."""
    x, mask = tokens(seed, length, d_k, 3), torch.ones(d_k, dtype=torch.float64).requires_grad_()
    q, k = silu(normal(seed + 7, length, d_k)) * mask, silu(normal(seed + 8, length, d_k)) * mask
    outputs, _ = delta_rule(normalized(q, eps), normalized(k, eps), x.v, x.beta)
    (gradient,) = torch.autograd.grad((outputs * normal(seed + 9, length, 3)).sum(), mask)
    return gradient


@given(seeds, st.integers(2, 6), st.integers(2, 6))
def test_identity_mask_fisher_has_the_ones_vector_in_its_null_space(
    seed: int, length: int, d_k: int
) -> None:
    """Exactly without eps; so dropping a set and dropping its complement cost the same."""
    gradients = torch.stack([mask_gradient(seed + 100 * i, length, d_k, 0.0) for i in range(3)])
    fisher = gradients.T @ gradients
    size = float(fisher.diagonal().sum())
    ones, dropped = torch.ones(d_k).double(), (torch.arange(d_k) < d_k // 2).double()
    assert float((fisher @ ones).abs().max()) <= 1e-9 * size
    costs = [float(d @ fisher @ d) for d in (dropped, ones - dropped)]
    assert costs[0] == pytest.approx(costs[1], rel=1e-6, abs=1e-9 * size)


def test_identity_mask_fisher_null_space_holds_up_to_the_eps_of_the_norm() -> None:
    gradient = mask_gradient(0, 6, 8, 1e-6)
    assert 0 < abs(float(gradient.sum())) < 1e-4 * float(gradient.norm())


# --- identities: strong RRQR ----------------------------------------------------------------------


def textbook_choice(matrix: Tensor, keep: int) -> list[int]:
    _, _, order = scipy.linalg.qr(matrix.numpy(), mode="economic", pivoting=True)
    return sorted(order[:keep].tolist())


@given(seeds, st.integers(2, 8), st.data())
def test_identity_selection_from_rows_r_factor_tree_qr_and_gram_agree(
    seed: int, n: int, data: st.DataObject
) -> None:
    keep = data.draw(st.integers(1, n))
    matrix = normal(seed, 4 * n, n) * torch.logspace(0, -2, n, dtype=torch.float64)
    r = torch.linalg.qr(matrix).R
    halves = [torch.linalg.qr(half).R for half in matrix.chunk(2)]
    tree = torch.linalg.qr(torch.cat(halves)).R
    expected = textbook_choice(matrix, keep)
    assert textbook_choice(r, keep) == textbook_choice(tree, keep) == expected
    grams = [matrix.T @ matrix, r.T @ r, tree.T @ tree, sum(h.T @ h for h in halves)]
    for gram in grams:
        # So generous a tolerance leaves the pivoted choice alone; a strict one must agree too.
        assert strong_rrqr(torch.as_tensor(gram), keep, 1e6).kept.tolist() == expected
    strict = {tuple(strong_rrqr(torch.as_tensor(g), keep, 1.001).kept.tolist()) for g in grams}
    assert len(strict) == 1


@given(seeds, st.integers(2, 5), st.integers(2, 4))
def test_identity_gu_eisenstat_update(seed: int, k: int, others: int) -> None:
    """Swap the last kept column with the first removed: U, omega and gamma, all updated."""
    n = k + others
    matrix = normal(seed, n + 2, n)
    r = torch.linalg.qr(matrix, mode="complete").R
    a, b, c = r[:k, :k], r[:k, k:], r[k:, k:]
    # Triangular C gives the rows c1, c2 of the reference; signs follow the diagonal.
    g = a[-1, -1]
    mu, nu = b[-1, 0] / g, c[0, 0] / g
    rho = torch.hypot(mu, nu)
    c1, c2 = b[-1, 1:], c[0, 1:]
    u = torch.linalg.solve(a[:-1, :-1], a[:-1, -1])
    coefficients = torch.linalg.solve(a, b)
    u1, rest = coefficients[:-1, 0], coefficients[:-1, 1:]
    new_g = g * rho
    new_c1, new_c2 = (mu * c1 + nu * c2) / rho, (nu * c1 - mu * c2) / rho
    updated = torch.cat(
        [
            torch.cat(
                [
                    ((nu**2 * u - mu * u1) / rho**2)[:, None],
                    rest + (nu * torch.outer(u, new_c2) - torch.outer(u1, new_c1)) / new_g,
                ],
                1,
            ),
            torch.cat([(mu / rho**2)[None], new_c1 / new_g])[None],
        ]
    )
    inverse_rows = torch.linalg.inv(a).square().sum(1)
    updated_rows = torch.cat(
        [
            inverse_rows[:-1] + (u1 + mu * u).square() / new_g**2 - u.square() / g**2,
            (1 / new_g**2)[None],
        ]
    )
    residuals = c.square().sum(0)
    updated_residuals = torch.cat(
        [(g * nu / rho).square()[None], residuals[1:] + new_c2.square() - c2.square()]
    )
    order = [*range(k - 1), k, k - 1, *range(k + 1, n)]
    fresh = torch.linalg.qr(matrix[:, order], mode="complete").R
    fresh_inverse = torch.linalg.inv(fresh[:k, :k])
    close = {"rtol": 1e-5, "atol": 1e-7}
    torch.testing.assert_close(updated, fresh_inverse @ fresh[:k, k:], **close)
    torch.testing.assert_close(updated_rows, fresh_inverse.square().sum(1), **close)
    torch.testing.assert_close(updated_residuals, fresh[k:, k:].square().sum(0), **close)
    assert abs(float(new_g / g)) == pytest.approx(float(rho))
