"""Recurrences one step at a time, directly from their definitions: slow but easy to check.

One head, float64. `q`, `k` [T, d_k], `v` [T, d_v], `beta` [T], log decay [T] or per channel
[T, d_k]; a state is [d_v, d_k]. Each returns the outputs [T, d_v] and the state after every token.
"""

import torch
from torch import Tensor

Run = tuple[Tensor, list[Tensor]]


def linear_attention(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None = None) -> Run:
    """`S = S diag(decay) + v k'`; with a scalar decay, Mamba-2; with one per channel, GLA."""
    state, states, outputs = _empty_state(k, v), [], []
    for t in range(len(k)):
        if log_decay is not None:
            state = state * log_decay[t].exp()
        state = state + torch.outer(v[t], k[t])
        states.append(state)
        outputs.append(state @ q[t])
    return torch.stack(outputs), states


def delta_rule(q: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> Run:
    """`S = S (I - beta k k') + beta v k'`."""
    return _decayed_delta_rule(q, k, v, beta, torch.zeros_like(beta))


def gated_delta_rule(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor) -> Run:
    """`S = decay S (I - beta k k') + beta v k'`, one decay per token."""
    assert log_decay.shape == beta.shape
    return _decayed_delta_rule(q, k, v, beta, log_decay)


def kda(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor) -> Run:
    """`S = S diag(decay) (I - beta k k') + beta v k'`, one decay per token and key channel."""
    assert log_decay.shape == k.shape
    return _decayed_delta_rule(q, k, v, beta, log_decay)


def _decayed_delta_rule(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor) -> Run:
    state, states, outputs = _empty_state(k, v), [], []
    for t in range(len(k)):
        state = state * log_decay[t].exp()
        erase = torch.eye(k.shape[1], dtype=torch.float64) - beta[t] * torch.outer(k[t], k[t])
        state = state @ erase + beta[t] * torch.outer(v[t], k[t])
        states.append(state)
        outputs.append(state @ q[t])
    return torch.stack(outputs), states


def _empty_state(k: Tensor, v: Tensor) -> Tensor:
    assert k.dtype == v.dtype == torch.float64
    return torch.zeros(v.shape[1], k.shape[1], dtype=torch.float64)
