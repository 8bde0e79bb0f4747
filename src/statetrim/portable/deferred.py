"""A state for decoding, whose latest writes wait until there are enough of them.

In eager PyTorch every operation on a state is a pass over memory: one to read it, one to decay it,
one to write to it. A token must read it; decays and writes can wait, and sixteen tokens then share
one pass of each.
"""

from __future__ import annotations

import torch
from torch import Tensor


class DeferredState:
    """The state `carry * base + keys' writes` of each head; takes over the tensor it is given.

    `base` [batch * heads, head_k_dim, head_v_dim]; `keys` and `writes` [batch * heads, capacity,
    dim], of which `waiting` are in use, the keys decayed until now; `carry` [batch * heads, 1,
    head_k_dim or 1], the decay of `base` so far. All factors are <= 1: nothing can overflow.
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
        """The state [batch, heads, head_k_dim, head_v_dim], nothing waiting."""
        if self.base_decay is not None:
            self.base.mul_(self.base_decay.mT)
        if self.num_pending:
            self.base.baddbmm_(
                self.pending_keys[:, : self.num_pending].mT,
                self.pending_values[:, : self.num_pending],
            )
        self.num_pending, self.base_decay = 0, None
        return self.base.view(self.shape)

    @torch.no_grad()
    def step(self, q: Tensor, k: Tensor, v: Tensor, beta: Tensor, decay: Tensor | None) -> Tensor:
        """One token of the delta rule: decay, write, read; [batch, heads, head_v_dim].

        `q`, `k` [batch, heads, head_k_dim], `v` [batch, heads, head_v_dim], `beta` [batch, heads],
        `decay` [batch, heads, head_k_dim or 1], a factor, not its log.
        """
        q, k, v = (x.flatten(0, 1).unsqueeze(1) for x in (q, k, v))
        beta = beta.flatten().view(-1, 1, 1)
        past_keys, past_values = (
            self.pending_keys[:, : self.num_pending],
            self.pending_values[:, : self.num_pending],
        )
        probes = torch.cat([beta * k, q], 1)
        base_probes = probes
        if decay is not None:
            factor = decay.flatten(0, 1).unsqueeze(1)
            self.base_decay = (
                factor.clone() if self.base_decay is None else self.base_decay.mul_(factor)
            )
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
