"""The states a kernel call passes through, a few at a time, from the arguments it was given.

The family knows the rule (`families/recurrences.py`). A state is [head_k_dim, head_v_dim].
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...errors import StatetrimError
from ...families.contract import Family
from ...maths.stored import fake_quantize
from ..kernel_hooks import L2_EPS, KernelCall

BLOCK = 256
"""Tokens walked at once; what is held does not grow with the sequence."""
MOST_STATES = 32
"""States of every head held at once."""


@dataclass(frozen=True, eq=False)
class Block:
    """What happened within a few tokens, float64."""

    query: Tensor  # [batch, time, key heads, head_k_dim], as the kernel uses it
    key: Tensor
    states: Tensor  # [batch, samples, value heads, head_k_dim, head_v_dim]


def walk(
    call: KernelCall, family: Family, every: int, dtype: str = "float32", piece: int = 64
) -> Iterator[Block]:
    """The call from its first token to its last, with the state after every `every`-th token.

    `every` is a power of two; the last sample is the final state, whatever the length. The state is
    stored in `dtype` after every `piece` tokens, a multiple of `every`, and continues from there.
    """
    from ...portable.delta_rule import chunk_states

    given = call.arguments
    if any(given.get(name) is not None for name in ("initial_state", "initial_states")):
        raise StatetrimError("the analysis starts from empty states; run the model without a cache")
    if given.get("cu_seqlens") is not None:
        raise StatetrimError("the analysis takes sequences of one length, not packed ones")
    recurrence = family.recurrence(call.kernel)
    if recurrence is None:
        raise StatetrimError(
            f"the analysis does not know the recurrence of {call.kernel!r}; "
            f"family {type(family).__name__} names none for it"
        )
    size, time = max(every, min(BLOCK, every * MOST_STATES)), call.key.shape[1]
    size = size if dtype == "float32" else piece
    state: Tensor | None = None
    for start in range(0, time, size):
        part = slice(start, start + size)
        query, key = (unit(x[:, part].double(), given) for x in (call.query, call.key))
        new = recurrence(given, part)
        states = chunk_states(key, new.value, new.log_decay, new.beta, state, chunk_size=every)
        state = states[:, -1]
        if dtype != "float32":
            state = fake_quantize(state.float(), dtype, -2).double()
            states = torch.cat([states[:, :-1], state.unsqueeze(1)], 1)
        yield Block(query, key, states)


def unit(x: Tensor, given: Mapping[str, Any]) -> Tensor:
    """`x` after the kernel's own L2 norm, where it has one."""
    if not given.get("use_qk_l2norm_in_kernel"):
        return x
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + L2_EPS)
