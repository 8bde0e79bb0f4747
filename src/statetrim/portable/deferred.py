"""A state for decoding that collects writes and applies them together.

In eager PyTorch every operation on a state is a pass over memory: one to read it, one to decay it,
one to write to it. Each token must read the state, but decays and writes can be deferred: sixteen
tokens then share one pass of each.
"""

from __future__ import annotations

import torch
from torch import Tensor


class DeferredState:
    """The state `base_decay * base + pending_keys' pending_values` of each head.

    `base` [batch * heads, head_k_dim, head_v_dim] shares memory with the given tensor, which
    changes. `pending_keys` and `pending_values` [batch * heads, capacity, dim] hold `num_pending`
    writes; the keys include all decays since. `base_decay` [batch * heads, 1, head_k_dim or 1] is
    the decay of `base` since the last `flush`. All factors are <= 1, so nothing overflows.
    """

    def __init__(self, state: Tensor, capacity: int = 16) -> None:
        self.shape = state.shape
        self.base = state.flatten(0, 1)
        heads, head_k_dim, head_v_dim = self.base.shape
        self.pending_keys = state.new_empty(heads, capacity, head_k_dim)
        self.pending_values = state.new_empty(heads, capacity, head_v_dim)
        self.num_pending = 0
        self.base_decay: Tensor | None = None

    def flush(self) -> Tensor:
        """Apply pending decays and writes to `base`; returns the state [batch, heads, head_k_dim,
        head_v_dim], which shares memory with `base`."""
        if self.base_decay is not None:
            self.base.mul_(self.base_decay.mT)
        if self.num_pending:
            keys, values = self._pending()
            self.base.baddbmm_(keys.mT, values)
        self.num_pending, self.base_decay = 0, None
        return self.base.view(self.shape)

    def _pending(self) -> tuple[Tensor, Tensor]:
        """Views of the pending keys and values that are in use."""
        used = slice(self.num_pending)
        return self.pending_keys[:, used], self.pending_values[:, used]

    @torch.no_grad()
    def step(self, q: Tensor, k: Tensor, v: Tensor, beta: Tensor, decay: Tensor | None) -> Tensor:
        """One token of the delta rule: decay, write, read. Returns [batch, heads, head_v_dim].

        `q`, `k` [batch, heads, head_k_dim], `v` [batch, heads, head_v_dim], `beta` [batch, heads],
        `decay` [batch, heads, head_k_dim or 1] is a factor, not its log.
        """
        q, k, v = (x.flatten(0, 1).unsqueeze(1) for x in (q, k, v))
        beta = beta.flatten().view(-1, 1, 1)
        past_keys, past_values = self._pending()
        probes = torch.cat([beta * k, q], 1)
        base_probes = probes
        if decay is not None:
            factor = decay.flatten(0, 1).unsqueeze(1)
            decayed = factor.clone() if self.base_decay is None else self.base_decay.mul_(factor)
            self.base_decay = decayed
            past_keys.mul_(factor)
        if self.base_decay is not None:
            base_probes = probes * self.base_decay
        readouts = base_probes @ self.base
        if self.num_pending:
            readouts.baddbmm_(probes @ past_keys.mT, past_values)
        new_value = beta * v - readouts[:, :1]
        self.pending_keys[:, self.num_pending] = k[:, 0]
        self.pending_values[:, self.num_pending] = new_value[:, 0]
        self.num_pending += 1
        if self.num_pending == self.pending_keys.shape[1]:
            self.flush()
        out = readouts[:, 1:] + (k * q).sum(-1, keepdim=True) * new_value
        return out.view(*self.shape[:2], -1)
