"""The Triton kernels with which SGLang 0.5.23 serves Gated DeltaNet layers, called in the order of
`sglang/srt/layers/attention/linear/gdn_backend.py`. On CUDA the convolution of a prefill is not the
one here but a compiled one."""

from __future__ import annotations

import torch
from served_layer import L2_EPS, WIDTH, Layer, Pool, Tokens
from sglang.kernels.ops.attention import triton_gdn_fused_proj as projection
from sglang.kernels.ops.attention.fla.chunk import chunk_gated_delta_rule
from sglang.kernels.ops.attention.fla.fused_norm_gate import rms_norm_gated
from sglang.kernels.ops.attention.fla.fused_recurrent import (
    fused_recurrent_gated_delta_rule_packed_decode,
)
from sglang.kernels.ops.attention.linear.fused_gdn_gating import fused_gdn_gating
from sglang.kernels.ops.attention.linear.fused_sigmoid_gating_recurrent import (
    fused_sigmoid_gating_delta_rule_update,
)
from sglang.kernels.ops.mamba.causal_conv1d_triton import causal_conv1d_fn, causal_conv1d_update
from torch import Tensor

projection.can_use_fused_qkvzba_causal_conv1d_update_contiguous = lambda *_, **__: (True, "")
MODULES = "sglang."


def split(layer: Layer, qkvz: Tensor, ba: Tensor, *, interleaved: bool) -> Tokens:
    """What the projections give: by key head (`interleaved`, Qwen3-Next) or by part (Qwen3.5)."""
    function = (
        projection.fused_qkvzba_split_reshape_cat
        if interleaved
        else projection.fused_qkvzba_split_reshape_cat_contiguous
    )
    mixed, z, b, a = function(
        qkvz, ba, layer.key_heads, layer.value_heads, layer.keys, layer.values
    )
    return Tokens(mixed, z, a, b)


def prefill(
    layer: Layer, pool: Pool, tokens: Tokens, starts: Tensor, slots: Tensor, has_state: Tensor
) -> Tensor:
    """Outputs [tokens, value heads, values] of several sequences; the pool is updated. The state of
    a new sequence is cleared when its slot is allocated."""
    pool.states[slots[~has_state].long()] = 0
    mixed = causal_conv1d_fn(
        tokens.mixed.mT,
        layer.convolution,
        None,
        activation="silu",
        conv_states=pool.convolution,
        has_initial_state=has_state,
        cache_indices=slots,
        query_start_loc=starts,
        seq_lens_cpu=starts.diff().tolist(),
    ).mT[: len(tokens.mixed)]
    q, k, v = projection.fused_qkv_split_gdn_prefill(
        mixed,
        layer.key_heads,
        layer.key_heads,
        layer.value_heads,
        layer.keys,
        layer.keys,
        layer.values,
    )
    g, beta = fused_gdn_gating(layer.A_log, tokens.a, tokens.b, layer.dt_bias)
    outputs = chunk_gated_delta_rule(
        q=q,
        k=k,
        v=v,
        g=g,
        beta=beta,
        initial_state=pool.states,
        initial_state_indices=slots,
        cu_seqlens=starts,
        head_first=False,
        use_qk_l2norm_in_kernel=True,
    )[0]
    return outputs.squeeze(0)


def decode(layer: Layer, pool: Pool, tokens: Tokens, slots: Tensor) -> Tensor:
    """Outputs of one token of each sequence; the pool is updated."""
    return _packed_decode(layer, pool, tokens, slots, _convolved(layer, pool, tokens, slots))


def decode_projected(layer: Layer, pool: Pool, tokens: Tokens, slots: Tensor) -> Tensor:
    """As `decode`, from the projection of Qwen3.5 by the kernel that also convolves: its default on
    CUDA, which takes any width."""
    mixed, z, b, a = projection.fused_qkvzba_causal_conv1d_update_contiguous(
        torch.cat([tokens.mixed, tokens.z.flatten(1)], 1),
        torch.cat([tokens.b, tokens.a], 1),
        pool.convolution,
        layer.convolution,
        None,
        slots,
        qkv_dim=layer.channels,
        v_dim=layer.value_heads * layer.values,
        num_v_heads=layer.value_heads,
        head_v_dim=layer.values,
        activation="silu",
    )
    if not torch.equal(z, tokens.z):
        raise ValueError("the gates of the output are not those of the projection")
    return _packed_decode(layer, pool, Tokens(mixed, z, a, b), slots, mixed)


def _packed_decode(
    layer: Layer, pool: Pool, tokens: Tokens, slots: Tensor, mixed: Tensor
) -> Tensor:
    outputs = torch.empty(len(slots), 1, layer.value_heads, layer.values, dtype=torch.bfloat16)
    fused_recurrent_gated_delta_rule_packed_decode(
        mixed_qkv=mixed,
        a=tokens.a,
        b=tokens.b,
        **layer.gates,
        scale=layer.keys**-0.5,
        initial_state=pool.states,
        out=outputs,
        ssm_state_indices=slots,
        use_qk_l2norm_in_kernel=True,
    )
    return outputs.squeeze(1)


def decode_with_prefill(layer: Layer, pool: Pool, tokens: Tokens, slots: Tensor) -> Tensor:
    """As `decode`, by the kernel of backends without a packed one."""
    q, k, v = layer.divided(_convolved(layer, pool, tokens, slots))
    return _recurrent(
        layer, pool, tokens, (q, k, v), slots, torch.arange(len(slots) + 1, dtype=torch.int32)
    )


def verify(
    layer: Layer, pool: Pool, tokens: Tokens, slots: Tensor, accepted: Tensor
) -> tuple[Tensor, Tensor]:
    """Outputs of several draft tokens of each sequence, and the states [tokens, value heads,
    values, keys] after each, which are kept outside the pool.

    A sequence continues from slots[:, 0] [sequences, drafts]; before, the engine copied there what
    its `accepted` draft tokens left.
    """
    sequences, drafts = slots.shape
    for n, count in enumerate(accepted.tolist()):
        pool.states[slots[n, 0]] = pool.states[slots[n, count - 1]].clone()
        window = pool.convolution[slots[n, 0], :, count - 1 : count + WIDTH - 2].clone()
        pool.convolution[slots[n, 0], :, : WIDTH - 1] = window
    own = torch.arange(sequences, dtype=torch.int32)
    mixed = causal_conv1d_update(
        tokens.mixed.view(sequences, drafts, -1).mT,
        pool.convolution,
        layer.convolution,
        None,
        "silu",
        conv_state_indices=slots[:, 0].contiguous(),
        intermediate_conv_window=torch.zeros(
            sequences, drafts, layer.channels, WIDTH - 1, dtype=torch.bfloat16
        ),
        intermediate_state_indices=own,
    )
    parts = layer.divided(mixed.mT.reshape(sequences * drafts, -1))
    states = torch.zeros(sequences, drafts, *pool.states.shape[1:])
    outputs = _recurrent(
        layer, pool, tokens, parts, slots[:, 0].contiguous(),
        torch.arange(sequences + 1, dtype=torch.int32) * drafts,
        disable_state_update=True, intermediate_states_buffer=states,
        intermediate_state_indices=own, cache_steps=drafts, retrieve_parent_token=None,
    )  # fmt: skip
    return outputs, states.flatten(0, 1)


def norm(layer: Layer, outputs: Tensor, z: Tensor) -> Tensor:
    """The outputs [tokens, value heads, values] after norm and gate."""
    return rms_norm_gated(outputs, z, layer.norm.bfloat16(), None, "silu", eps=L2_EPS)


def _recurrent(layer, pool, tokens, parts, slots, starts, **options) -> Tensor:
    q, k, v = (x.contiguous().unsqueeze(0) for x in parts)
    outputs = fused_sigmoid_gating_delta_rule_update(
        **layer.gates,
        q=q,
        k=k,
        v=v,
        a=tokens.a,
        b=tokens.b,
        initial_state_source=pool.states,
        initial_state_indices=slots,
        cu_seqlens=starts,
        use_qk_l2norm_in_kernel=True,
        softplus_beta=1.0,
        softplus_threshold=20.0,
        **options,
    )
    return outputs.squeeze(0)


def _convolved(layer: Layer, pool: Pool, tokens: Tokens, slots: Tensor) -> Tensor:
    return causal_conv1d_update(
        tokens.mixed, pool.convolution, layer.convolution, None, "silu", conv_state_indices=slots
    )
