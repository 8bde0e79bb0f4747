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
        self.keys = state.new_empty(heads, capacity, head_k_dim)
        self.writes = state.new_empty(heads, capacity, head_v_dim)
        self.waiting = 0
        self.carry: Tensor | None = None

    def tensor(self) -> Tensor:
        """The state [batch, heads, head_k_dim, head_v_dim], nothing waiting."""
        if self.carry is not None:
            self.base.mul_(self.carry.mT)
        if self.waiting:
            self.base.baddbmm_(self.keys[:, : self.waiting].mT, self.writes[:, : self.waiting])
        self.waiting, self.carry = 0, None
        return self.base.view(self.shape)

    @torch.no_grad()
    def step(self, q: Tensor, k: Tensor, v: Tensor, beta: Tensor, decay: Tensor | None) -> Tensor:
        """One token of the delta rule: decay, write, read; [batch, heads, head_v_dim].

        `q`, `k` [batch, heads, head_k_dim], `v` [batch, heads, head_v_dim], `beta` [batch, heads],
        `decay` [batch, heads, head_k_dim or 1], a factor, not its log.
        """
        q, k, v = (x.flatten(0, 1).unsqueeze(1) for x in (q, k, v))
        beta = beta.flatten().view(-1, 1, 1)
        keys, writes = self.keys[:, : self.waiting], self.writes[:, : self.waiting]
        readers = torch.cat([beta * k, q], 1)
        base_readers = readers
        if decay is not None:
            factor = decay.flatten(0, 1).unsqueeze(1)
            self.carry = factor.clone() if self.carry is None else self.carry.mul_(factor)
            keys.mul_(factor)
        if self.carry is not None:
            base_readers = readers * self.carry
        seen = base_readers @ self.base
        if self.waiting:
            seen.baddbmm_(readers @ keys.mT, writes)
        write = beta * v - seen[:, :1]
        self.keys[:, self.waiting] = k[:, 0]
        self.writes[:, self.waiting] = write[:, 0]
        self.waiting += 1
        if self.waiting == self.keys.shape[1]:
            self.tensor()
        out = seen[:, 1:] + (k * q).sum(-1, keepdim=True) * write
        return out.view(*self.shape[:2], -1)
