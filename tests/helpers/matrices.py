"""Test matrices for strong RRQR, from random ones to constructed worst cases."""

from collections.abc import Callable, Iterator

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

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


def activation_cases() -> Iterator[Case]:
    rng = np.random.default_rng(3)
    for n, keep in [(16, 8), (32, 8), (64, 32), (64, 48)] * 10 + [(128, 64)] * 4:
        hidden = rng.standard_normal((2 * n, n)) @ (
            rng.standard_normal((n, n)) * np.logspace(0, -1.5, n)
        )
        yield hidden / (1 + np.exp(-hidden)), keep, 1.5


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


def kahan_block_cases() -> Iterator[Case]:
    for count, n in [(2, 8), (3, 8), (5, 10), (8, 6), (10, 5)]:
        yield kahan_blocks(count, n, 0.6), count * (n - 1), 1.5


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


def first(count: int, cases: Iterator[Case]) -> Iterator[Case]:
    return (case for case, _ in zip(cases, range(count), strict=False))


FAMILIES: dict[str, Callable[[], Iterator[Case]]] = {
    "gaussian": gaussian_cases,
    "conditioned to 1e6": conditioned_cases,
    "activations": activation_cases,
    "kahan": kahan_cases,
    "kahan blocks": kahan_block_cases,
    "smooth": lambda: first(60, smooth_cases()),
    "duplicated columns": duplicated_cases,
    "zero columns": zeroed_cases,
}
