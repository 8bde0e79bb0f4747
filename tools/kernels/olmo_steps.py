"""The Triton kernels with which vLLM 0.32 serves OLMo-Hybrid, called in the order of
`vllm/model_executor/layers/mamba/gdn/olmo_gdn_linear_attn.py`."""

from __future__ import annotations

import os

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # or vLLM leaves out Triton where it finds no GPU

import torch
from served_layer import Layer, Pool, Tokens
from torch import Tensor

# Before vllm_steps, which replaces a module that this one needs.
from vllm.model_executor.layers.mamba.gdn.olmo_gdn_linear_attn import fused_olmo_hybrid_gdn_gating

# isort: split
from vllm_steps import MODULES, chunked, convolved, convolved_drafts, convolved_prefill, norm, ops

__all__ = ["MODULES", "decode", "norm", "prefill", "verify"]


def prefill(
    layer: Layer, pool: Pool, tokens: Tokens, starts: Tensor, slots: Tensor, has_state: Tensor
) -> Tensor:
    """Outputs [tokens, value heads, values] of several sequences; the pool is updated."""
    mixed = convolved_prefill(layer, pool, tokens, starts, slots, has_state)
    parts = (*_parts(layer, mixed), *_gates(layer, tokens))
    return chunked(pool, parts, starts, slots, has_state, normalizes=True)


def decode(layer: Layer, pool: Pool, tokens: Tokens, slots: Tensor) -> Tensor:
    """Outputs of one token of each sequence; the pool is updated."""
    starts = torch.arange(len(slots) + 1, dtype=torch.int32)
    return _recurrent(layer, pool, tokens, convolved(layer, pool, tokens, slots), starts, slots)


def verify(
    layer: Layer, pool: Pool, tokens: Tokens, slots: Tensor, accepted: Tensor
) -> tuple[Tensor, Tensor]:
    """Outputs of draft tokens, and the states after each; arguments as in `vllm_steps`."""
    mixed, starts = convolved_drafts(layer, pool, tokens, slots, accepted)
    outputs = _recurrent(layer, pool, tokens, mixed, starts, slots, num_accepted_tokens=accepted)
    return outputs, pool.states[slots.long().flatten()]


def _recurrent(
    layer: Layer, pool: Pool, tokens: Tokens, mixed: Tensor, starts: Tensor, slots: Tensor,
    num_accepted_tokens: Tensor | None = None,
) -> Tensor:  # fmt: skip
    q, k, v, g, beta = (x.unsqueeze(0) for x in (*_parts(layer, mixed), *_gates(layer, tokens)))
    outputs, _ = ops.fused_recurrent_gated_delta_rule(
        q=q,
        k=k,
        v=v,
        g=g,
        beta=beta,
        initial_state=pool.states,
        inplace_final_state=True,
        cu_seqlens=starts,
        ssm_state_indices=slots,
        num_accepted_tokens=num_accepted_tokens,
        use_qk_l2norm_in_kernel=True,
    )
    return outputs.squeeze(0)


def _parts(layer: Layer, mixed: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.contiguous() for x in layer.divided(mixed))


def _gates(layer: Layer, tokens: Tokens) -> tuple[Tensor, Tensor]:
    g, beta = fused_olmo_hybrid_gdn_gating(layer.A_log, tokens.a, tokens.b, layer.dt_bias)
    return g.squeeze(0), beta.squeeze(0)
