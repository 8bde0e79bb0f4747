"""Strong RRQR from a Gram against an oracle that never sees one.

The oracle is scipy's pivoted QR of the raw matrix, then textbook swaps with a full QR each time.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch
from numpy.typing import NDArray

from helpers.forker import run_in_child
from statetrim.maths import linalg
from statetrim.maths.linalg import strong_rrqr

Matrix = NDArray[np.float64]
Case = tuple[Matrix, int, float]  # raw matrix [rows, n], keep, tolerance


def with_spectrum(rng: np.random.Generator, rows: int, singular: Matrix) -> Matrix:
    n = len(singular)
    left = np.linalg.qr(rng.standard_normal((rows, n)))[0]
    spread: Matrix = (left * singular) @ np.linalg.qr(rng.standard_normal((n, n)))[0]
    return spread


def kahan(n: int, cosine: float, decrease: float = 1e-7) -> Matrix:
    """Pivoting keeps the natural order and misses the near-null vector; all norms tie at 0."""
    sine = np.sqrt(1 - cosine**2)
    upper = np.eye(n) - cosine * np.triu(np.ones((n, n)), 1)
    matrix: Matrix = sine ** np.arange(n)[:, None] * upper * (1 - decrease) ** np.arange(n)
    return matrix


def kahan_blocks(count: int, n: int, cosine: float) -> Matrix:
    """One swap per block; the blocks differ a little in scale so that they do not tie."""
    blocks = [kahan(n, cosine) * 1.001**-i for i in range(count)]
    matrix: Matrix = scipy.linalg.block_diag(*blocks)
    return matrix


def gaussian_cases() -> Iterator[Case]:
    rng = np.random.default_rng(1)
    for trial in range(150):
        n = int(rng.integers(2, 41))
        matrix = rng.standard_normal((n + int(rng.integers(0, 60)), n))
        yield matrix, int(rng.integers(1, n + 1)), (1.5, 1.02, 1.001)[trial % 3]


def conditioned_cases() -> Iterator[Case]:
    rng = np.random.default_rng(2)
    for trial in range(126):
        n = int(rng.integers(4, 65))
        matrix = with_spectrum(rng, n + 10, np.logspace(0, -1 - trial % 6, n))
        yield matrix, int(rng.integers(1, n)), (1.5, 1.05)[trial % 2]


def kahan_cases() -> Iterator[Case]:
    rng = np.random.default_rng(4)
    for n, cosines in [
        (8, (0.2, 0.285, 0.4, 0.6)),
        (16, (0.2, 0.285, 0.4)),
        (24, (0.1, 0.2, 0.285, 0.4)),
        (32, (0.1, 0.2, 0.285)),
        (48, (0.05, 0.1, 0.2, 0.25)),
    ]:
        for cosine in cosines:
            for keep in (n // 4, n // 2, n - 2, n - 1):
                yield kahan(n, cosine), keep, 1.5
                yield kahan(n, cosine)[:, rng.permutation(n)], keep, 1.5


def smooth_cases() -> Iterator[Case]:
    """Nearly dependent columns, Gaussian bumps and powers: pivoting is often not enough."""
    rng = np.random.default_rng(5)
    while True:
        n = int(rng.integers(4, 24))
        grid, points = np.linspace(0, 1, 40), rng.random(n)
        bumps = np.exp(-rng.choice([10.0, 100.0]) * (grid[:, None] - points) ** 2)
        powers = np.vander(grid, n, increasing=True)
        for matrix in (bumps * (1 + 0.1 * rng.random(n)), powers * (1 + 0.1 * rng.random(n))):
            if np.linalg.cond(matrix) < 1e6:
                yield matrix, int(rng.integers(1, n)), float(rng.choice([1.5, 1.1, 1.02]))


def duplicated_cases() -> Iterator[Case]:
    rng = np.random.default_rng(6)
    for _ in range(60):
        n = int(rng.integers(3, 20))
        distinct = rng.integers(-9, 10, (n + 8, n)).astype(float)
        matrix = distinct[:, rng.permutation(np.r_[np.arange(n), rng.integers(0, n, n)])]
        yield matrix, int(rng.integers(1, n + 1)), 1.5


def zeroed_cases() -> Iterator[Case]:
    rng = np.random.default_rng(7)
    for _ in range(40):
        n = int(rng.integers(4, 30))
        matrix = rng.standard_normal((n + 5, n))
        dead = rng.choice(n, int(rng.integers(1, n)), replace=False)
        matrix[:, dead] = 0.0
        yield matrix, int(rng.integers(1, n - len(dead) + 1)), 1.5
        spread = np.zeros((24, 32))
        spread[:, rng.choice(32, 24, replace=False)] = kahan(24, 0.285)
        yield spread, int(rng.integers(12, 24)), 1.5


FAMILIES: dict[str, Callable[[], Iterator[Case]]] = {
    "gaussian": gaussian_cases,
    "conditioned to 1e6": conditioned_cases,
    "kahan": kahan_cases,
    "kahan blocks": lambda: (
        (kahan_blocks(count, n, 0.6), count * (n - 1), 1.5)
        for count, n in [(2, 8), (3, 8), (5, 10), (8, 6), (10, 5)]
    ),
    "smooth": lambda: islice(smooth_cases(), 60),
    "duplicated columns": duplicated_cases,
    "zero columns": zeroed_cases,
}


def test_the_condition_number_counts_nonzero_singular_values_of_any_scale() -> None:
    matrix = torch.from_numpy(with_spectrum(np.random.default_rng(13), 7, np.array([4.0, 2, 1, 0])))
    for scale in (1.0, 1e-300, 1e300):
        batch = torch.stack([matrix, torch.zeros_like(matrix)]) * scale
        known, unknown = linalg.condition_number(batch)
        assert known.item() == pytest.approx(4.0) and unknown.isnan()


# --- the oracle -----------------------------------------------------------------------------------


def blocks(matrix: Matrix, kept: list[int]) -> tuple[Matrix, Matrix, Matrix, list[int]]:
    """A, B, C of the QR with the kept columns first, and the removed columns in order."""
    removed = [j for j in range(matrix.shape[1]) if j not in kept]
    r = np.linalg.qr(matrix[:, kept + removed], mode="r")
    k = len(kept)
    return r[:k, :k], r[:k, k:], r[k:, k:], removed


def textbook_gains(matrix: Matrix, kept: list[int]) -> Matrix:
    a, b, c, _ = blocks(matrix, kept)
    inverse = scipy.linalg.solve_triangular(a, np.eye(len(a)))
    row_norm, residual = np.linalg.norm(inverse, axis=1), np.linalg.norm(c, axis=0)
    return np.sqrt((inverse @ b) ** 2 + np.outer(row_norm, residual) ** 2)


def textbook_strong_rrqr(
    matrix: Matrix, keep: int, tolerance: float
) -> tuple[list[int], int, float]:
    """The columns, the number of swaps, and the largest gain of another swap."""
    _, _, order = scipy.linalg.qr(matrix, mode="economic", pivoting=True)
    kept, swaps, gain = sorted(order[:keep].tolist()), 0, 0.0
    while keep < matrix.shape[1]:
        gains = textbook_gains(matrix, kept)
        gain = gains.max()
        if gain <= tolerance:
            break
        i, j = np.unravel_index(gains.argmax(), gains.shape)
        removed = [c for c in range(matrix.shape[1]) if c not in kept]
        kept, swaps = sorted({*kept, removed[j]} - {kept[i]}), swaps + 1
    return kept, swaps, gain


def lowest_equal_columns(matrix: Matrix, columns: list[int]) -> list[int]:
    """Replace each column by the lowest index of an equal one: LAPACK breaks ties by position."""
    first = [
        next(i for i in range(j + 1) if np.array_equal(matrix[:, i], matrix[:, j])) for j in columns
    ]
    return sorted(first)


def select(matrix: Matrix, keep: int, tolerance: float = 1.5) -> linalg.RRQR:
    return strong_rrqr(torch.from_numpy(matrix.T @ matrix), keep, tolerance)


FEWEST_SWAPS = {
    "gaussian": 5, "conditioned to 1e6": 40, "kahan": 60, "kahan blocks": 28, "smooth": 8,
    "zero columns": 40,
}  # fmt: skip


# --- selection ------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_same_columns_as_scipy_and_textbook_swaps(family: str) -> None:
    swaps = 0
    for matrix, keep, tolerance in FAMILIES[family]():
        expected, expected_swaps, gain = textbook_strong_rrqr(matrix, keep, tolerance)
        result = select(matrix, keep, tolerance)
        assert result.kept.dtype == torch.int64
        assert result.kept.tolist() == lowest_equal_columns(matrix, expected)
        assert (result.rank, result.swaps, result.converged) == (keep, expected_swaps, True)
        assert result.last_gain == pytest.approx(gain, rel=1e-3, abs=1e-6)
        swaps += result.swaps
    assert swaps >= FEWEST_SWAPS.get(family, 0), "too few swaps to test swapping"


# --- rank, ties, order ----------------------------------------------------------------------------


def test_dependent_columns_are_filled_up_by_norm_and_the_rank_is_reported() -> None:
    rng = np.random.default_rng(8)
    for trial in range(60):
        n, rank = int(rng.integers(4, 40)), int(rng.integers(1, 4))
        matrix = rng.standard_normal((n + 4, rank)) @ rng.standard_normal((rank, n))
        if trial % 3 == 0:
            matrix[:, rng.choice(n, n // 4, replace=False)] = 0.0
        _, r, order = scipy.linalg.qr(matrix, mode="economic", pivoting=True)
        numerical_rank = int((np.abs(np.diag(r)) > 1e-9 * abs(r[0, 0])).sum())
        keep = int(rng.integers(numerical_rank + 1, n + 1))
        basis = order[:numerical_rank].tolist()
        by_norm = sorted(set(range(n)) - set(basis), key=lambda j: -np.square(matrix[:, j]).sum())
        result = select(matrix, keep)
        assert result.rank == numerical_rank < keep
        assert result.kept.tolist() == sorted(basis + by_norm[: keep - numerical_rank])
        assert (result.swaps, result.converged, result.last_gain) == (0, True, 0.0)


def test_all_zero_gram_has_rank_zero_and_keeps_the_lowest_channels() -> None:
    result = strong_rrqr(torch.zeros(6, 6, dtype=torch.float64), 4)
    assert (result.rank, result.kept.tolist()) == (0, [0, 1, 2, 3])


@pytest.mark.parametrize("decades", [8, 10, 12, 15])
def test_beyond_what_a_gram_resolves_the_rank_is_reported(decades: int) -> None:
    n = 64
    singular = np.logspace(0, -decades, n)
    result = select(with_spectrum(np.random.default_rng(decades), 2 * n, singular), n)
    # A Gram resolves singular values down to about 1.2e-7 of the largest (n = 64).
    assert (singular > 1e-6).sum() <= result.rank <= (singular > 1e-8).sum() < n
    assert result.kept.tolist() == list(range(n))


def test_rank_does_not_depend_on_the_scale_of_the_activations() -> None:
    matrix = with_spectrum(np.random.default_rng(0), 60, np.logspace(0, -9, 40))
    plain = select(matrix, 36)
    for scale in (1e-30, 1e-9, 1e9, 1e30):
        scaled = select(matrix * scale, 36)
        assert (scaled.rank, scaled.kept.tolist()) == (plain.rank, plain.kept.tolist())


def test_ties_go_to_the_lowest_index() -> None:
    identity = np.eye(9)
    assert select(identity, 4).kept.tolist() == [0, 1, 2, 3]
    assert select(np.hstack([identity, identity]), 9).kept.tolist() == list(range(9))
    backwards = np.hstack([np.diag(np.arange(1.0, 5.0)), np.diag(np.arange(1.0, 5.0))[:, ::-1]])
    assert select(backwards, 2).kept.tolist() == [2, 3]
    # More columns than rank: the longest first, again from the lowest index.
    assert select(np.hstack([identity[:, :3]] * 3), 5).kept.tolist() == [0, 1, 2, 3, 4]


def test_rounding_does_not_decide_a_tie() -> None:
    rng = np.random.default_rng(9)
    for _ in range(20):
        nearly_tied = np.diag(1 + 1e-14 * rng.standard_normal(12))
        assert select(nearly_tied, 5).kept.tolist() == [0, 1, 2, 3, 4]
    # All residuals of an exact Kahan matrix tie at every step: natural order, then the same swap.
    exact, decreasing = kahan(24, 0.285, decrease=0.0), kahan(24, 0.285)
    assert select(exact, 23).kept.tolist() == select(decreasing, 23).kept.tolist()


def test_one_and_two_threads_choose_the_same_set() -> None:
    """In a child: a process that has had two threads cannot be forked by a later test."""

    def compare() -> None:
        rng = np.random.default_rng(10)
        for n, keep in [(64, 32), (128, 64), (256, 96)]:
            matrix = torch.from_numpy(with_spectrum(rng, 2 * n, np.logspace(0, -4, n)))
            results = []
            for count in (1, 2):
                torch.set_num_threads(count)
                results.append(strong_rrqr(matrix.T @ matrix, keep, 1.01))
            assert torch.equal(results[0].kept, results[1].kept)
            assert results[0].swaps == results[1].swaps

    assert run_in_child(compare) == 0


# --- convergence is reported, invalid input is refused --------------------------------------------


def bumps(width: float, bend: float, n: int) -> Matrix:
    """Columns so close that, near a tolerance of 1, rounding decides which swap gains."""
    points = np.linspace(0, 1, n) ** bend
    return np.exp(-width * (points[:, None] - points) ** 2)


def test_a_search_that_rounding_leads_in_a_circle_says_so() -> None:
    matrix = bumps(3, 1.3, 21)
    stopped = select(matrix, 9, 1.001)
    assert (stopped.rank, stopped.converged) == (9, False)
    assert stopped.last_gain > 1.001
    assert stopped.swaps < 10  # at the first repetition, long before the limit
    assert select(matrix, 9).converged


def test_a_search_that_ends_in_a_set_the_gram_cannot_resolve_says_so() -> None:
    stopped = select(bumps(3, 1.3, 33), 9, 1.001)
    assert (stopped.rank, stopped.converged) == (9, False)
    assert stopped.swaps > 0 and stopped.last_gain < 1.001


def test_the_swap_limit_is_reported_and_never_met_in_practice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert linalg._swap_limit(64, 1.5) > 64 * np.log(np.sqrt(128)) / np.log(1.5)
    monkeypatch.setattr(linalg, "_swap_limit", lambda keep, tolerance: 2)
    cut = select(kahan_blocks(5, 10, 0.6), 45)
    assert (cut.swaps, cut.converged) == (2, False)
    assert cut.last_gain > 1.5


EYE = torch.eye(4, dtype=torch.float64)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.eye(4), 2), "float64"),
        ((torch.ones(4, 3, dtype=torch.float64), 2), "square"),
        ((torch.ones(2, 4, 4, dtype=torch.float64), 2), "square"),
        ((EYE, 0), "from 1 to 4"),
        ((EYE, 5), "from 1 to 4"),
        ((EYE * float("nan"), 2), "finite"),
        ((torch.ones(4, 4, dtype=torch.float64).tril(), 2), "symmetric"),
        ((-EYE, 2), "diagonal"),
        *(((EYE, 2, t), "tolerance must be above 1") for t in (1.0, 0.5, -2.0, float("nan"))),
    ],
)
def test_what_is_no_gram_width_or_tolerance_is_refused(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        strong_rrqr(*arguments)
