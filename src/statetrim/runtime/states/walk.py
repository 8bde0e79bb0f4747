"""The states during a kernel call, recomputed from its arguments a few at a time.

The family defines the recurrence (`families/recurrences.py`). A state is [head_k_dim, head_v_dim].
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...errors import StatetrimError
from ...families.contract import Family
from ...maths.quantization import fake_quantize
from ..kernel_hooks import L2_EPS, KernelCall

BLOCK = 256
"""Tokens processed at once; memory does not grow with the sequence."""
MAX_STATES = 32
"""States per head that are in memory at once."""


@dataclass(frozen=True, eq=False)
class StateBlock:
    """Queries, keys and sampled states of a block of tokens, float64."""

    query: Tensor  # [batch, time, key heads, head_k_dim], as the kernel uses it
    key: Tensor
    states: Tensor  # [batch, samples, value heads, head_k_dim, head_v_dim]


def walk_states(
    call: KernelCall, family: Family, every: int, dtype: str = "float32", piece: int = 64
) -> Iterator[StateBlock]:
    """Blocks of a kernel call in order, with the state after every `every`-th token.

    `every` is a power of two; the last sample is the final state, whatever the length. The state is
    rounded to `dtype` after every `piece` tokens, a multiple of `every`. Refuses initial states,
    packed sequences, and kernels whose recurrence the family does not define.
    """
    from ...portable.delta_rule import chunk_states

    arguments = call.arguments
    if arguments.get("initial_state") is not None or arguments.get("initial_states") is not None:
        raise StatetrimError("the analysis starts from empty states; run the model without a cache")
    if arguments.get("cu_seqlens") is not None:
        raise StatetrimError("the analysis takes sequences of one length, not packed ones")
    recurrence = family.recurrence(call.kernel)
    if recurrence is None:
        raise StatetrimError(
            f"the analysis does not know the recurrence of {call.kernel!r}; "
            f"family {type(family).__name__} names none for it"
        )
    block_size, time = max(every, min(BLOCK, every * MAX_STATES)), call.key.shape[1]
    block_size = block_size if dtype == "float32" else piece
    state: Tensor | None = None
    for start in range(0, time, block_size):
        tokens = slice(start, start + block_size)
        query = l2_normalized(call.query[:, tokens].double(), arguments)
        key = l2_normalized(call.key[:, tokens].double(), arguments)
        new = recurrence(arguments, tokens)
        states = chunk_states(key, new.value, new.log_decay, new.beta, state, chunk_size=every)
        state = states[:, -1]
        if dtype != "float32":
            state = fake_quantize(state.float(), dtype, -2).double()
            states = torch.cat([states[:, :-1], state.unsqueeze(1)], 1)
        yield StateBlock(query, key, states)


def l2_normalized(x: Tensor, arguments: Mapping[str, Any]) -> Tensor:
    """`x` [..., channels] after the kernel's L2 norm, if these arguments switch it on."""
    if not arguments.get("use_qk_l2norm_in_kernel"):
        return x
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + L2_EPS)
