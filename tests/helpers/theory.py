"""Shared by the tests of the paper's statements and of our identities: random tensors, measures."""

from typing import NamedTuple

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from helpers.reference import Run, delta_rule, gated_delta_rule, linear_attention

# Derandomized, so that a failure is reproducible everywhere.
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
    turn: Tensor = torch.linalg.qr(normal(seed, n, n)).Q
    return turn


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
    """Largest entry of the component of `matrix` outside the row space of `basis_rows`."""
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
    directions: Tensor = torch.linalg.eigh(rows.T @ rows).eigenvectors.T.flip(0)
    return directions[:count]
