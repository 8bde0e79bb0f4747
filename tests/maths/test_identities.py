"""The exact identities that our own code relies on (`docs/the-maths.md`)."""

from typing import NamedTuple

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from helpers.recurrences import step_by_step

# Derandomized, so that a failure is reproducible everywhere.
settings.register_profile("theory", max_examples=60, deadline=None, derandomize=True, database=None)
settings.load_profile("theory")

seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(1, 7)


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


Run = tuple[Tensor, Tensor]
"""The outputs of one head [T, d_v], and its states [T, d_v, d_k]."""


def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor | None = None, log_decay: Tensor | None = None
) -> Run:
    """`S = decay S (I - beta k k') + beta v k'`; without beta `S = decay S + v k'`."""
    parts = {"g": log_decay, "beta": beta}
    one_head = {name: x[None, :, None] for name, x in parts.items() if x is not None}
    tokens = (x[None, :, None] for x in (q, k, v))
    outputs, states = step_by_step(*tokens, **one_head, scale=1.0)
    return outputs[0, :, 0], states[0, :, 0].mT


class Tokens(NamedTuple):
    q: Tensor
    k: Tensor
    v: Tensor
    beta: Tensor
    log_decay: Tensor


def tokens(seed: int, length: int, d_k: int, d_v: int) -> Tokens:
    """Unit queries and keys, decays between 0.4 and 1."""
    return Tokens(
        q=normalized(normal(seed, length, d_k)),
        k=normalized(normal(seed + 1, length, d_k)),
        v=normal(seed + 3, length, d_v),
        beta=normal(seed + 4, length).sigmoid(),
        log_decay=-normal(seed + 5, length).sigmoid(),
    )


def scalar_decay_runs(x: Tokens) -> list[Run]:
    """Every recurrence whose decay, if any, is one number per token."""
    return [
        delta_rule(x.q, x.k, x.v, beta, log_decay)
        for beta in (None, x.beta)
        for log_decay in (None, x.log_decay)
    ]


def top_directions(rows: Tensor, count: int) -> Tensor:
    """PCA without centring: [count, d], eigenvectors of the largest second moments."""
    directions: Tensor = torch.linalg.eigh(rows.T @ rows).eigenvectors.T.flip(0)
    return directions[:count]


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
    plain = delta_rule(q, short, x.v, x.beta, x.log_decay)
    renormalised = delta_rule(
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
