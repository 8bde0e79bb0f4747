"""The Gated DeltaNet kernels of fla 0.6 in the order of a server: chunks for a prefill, and one
token at a time. Convolution and pool are those of PyTorch. A sample of what `vllm_steps` and
`sglang_steps` run, for machines without these engines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from fla.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule
from served_layer import WIDTH, Layer, Pool, Tokens
from torch import Tensor
from torch.nn import functional

MODULES = "fla."
PACKAGE = "flash-linear-attention"


def prefill(
    layer: Layer, pool: Pool, tokens: Tokens, starts: Tensor, slots: Tensor, has_state: Tensor
) -> Tensor:
    """Outputs [tokens, value heads, values] of several sequences; the pool is updated."""
    pool.states[slots[~has_state].long()] = 0
    pool.convolution[slots[~has_state].long()] = 0
    return _run(chunk_gated_delta_rule, layer, pool, tokens, starts, slots)


def decode(layer: Layer, pool: Pool, tokens: Tokens, slots: Tensor) -> Tensor:
    """Outputs of one token of each sequence; the pool is updated."""
    starts = torch.arange(len(slots) + 1, dtype=torch.int32)
    return _run(fused_recurrent_gated_delta_rule, layer, pool, tokens, starts, slots)


def _run(
    kernel: Callable[..., Any], layer: Layer, pool: Pool, tokens: Tokens, starts: Tensor,
    slots: Tensor,
) -> Tensor:  # fmt: skip
    mixed = []
    for n, slot in enumerate(slots.tolist()):
        part = tokens.between(int(starts[n]), int(starts[n + 1])).mixed
        inputs = torch.cat([pool.convolution[slot].mT, part])
        windows = inputs.float().unfold(0, WIDTH, 1)
        mixed.append(functional.silu((windows * layer.convolution.float()).sum(-1)))
        pool.convolution[slot] = inputs[1 - WIDTH :].mT
    q, k, v = layer.divided(torch.cat(mixed).bfloat16())
    steps = functional.softplus(tokens.a.float() + layer.dt_bias)
    outputs, states = kernel(
        q=q.unsqueeze(0),
        k=k.unsqueeze(0),
        v=v.unsqueeze(0),
        g=(-layer.A_log.exp() * steps).unsqueeze(0),
        beta=tokens.b.float().sigmoid().unsqueeze(0),
        initial_state=pool.states[slots.long()],
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
        state_v_first=True,
        cu_seqlens=starts.long(),
    )
    pool.states[slots.long()] = states
    return outputs.squeeze(0)
