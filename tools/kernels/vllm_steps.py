"""The Triton kernels with which vLLM 0.32 serves Gated DeltaNet layers, called in the order of
`vllm/model_executor/layers/mamba/gdn/qwen_gdn_linear_attn.py`. Its split of the projection is plain
PyTorch."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from types import ModuleType, SimpleNamespace

os.environ.setdefault("VLLM_TARGET_DEVICE", "cuda")

import torch
import triton
import vllm.triton_utils
import vllm.utils.torch_utils
from served_layer import L2_EPS, Layer, Pool, Tokens
from torch import Tensor

vllm.utils.torch_utils.PIN_MEMORY = False
# Without a GPU vLLM has placeholders here, which its kernels would import.
vllm.triton_utils.HAS_TRITON = True
vllm.triton_utils.triton, vllm.triton_utils.tl = triton, triton.language
vllm.triton_utils.tldevice = triton.language.extra.libdevice
# The convolution takes two numbers from a module that imports all of vLLM.
_constants = ModuleType("vllm.v1.attention.backends.utils")
_constants.PAD_SLOT_ID, _constants.NULL_BLOCK_ID = -1, 0  # type: ignore[attr-defined]
sys.modules.setdefault(_constants.__name__, _constants)

from vllm.model_executor.layers.mamba.ops.causal_conv1d import (  # noqa: E402
    causal_conv1d_fn,
    causal_conv1d_update,
)
from vllm.third_party.flash_linear_attention import ops  # noqa: E402
from vllm.third_party.flash_linear_attention.ops import layernorm_guard  # noqa: E402

layernorm_guard.num_compute_units = lambda device: 132  # of an H100
MODULES = "vllm."


def prefill(
    layer: Layer, pool: Pool, tokens: Tokens, starts: Tensor, slots: Tensor, has_state: Tensor
) -> Tensor:
    """Outputs [tokens, value heads, values] of several sequences; the pool is updated."""
    prepared = ops.fused_post_conv_prep(
        conv_output=convolved_prefill(layer, pool, tokens, starts, slots, has_state),
        a=tokens.a,
        b=tokens.b,
        **layer.gates,
        num_k_heads=layer.key_heads,
        head_k_dim=layer.keys,
        head_v_dim=layer.values,
        apply_l2norm=True,
        output_g_exp=False,
    )
    return chunked(pool, prepared, starts, slots, has_state, normalizes=False)


def convolved_prefill(
    layer: Layer, pool: Pool, tokens: Tokens, starts: Tensor, slots: Tensor, has_state: Tensor
) -> Tensor:
    """q, k and v [tokens, channels] of several sequences after the convolution."""
    return causal_conv1d_fn(
        tokens.mixed.mT,
        layer.convolution,
        None,
        activation="silu",
        conv_states=pool.convolution,
        has_initial_state=has_state,
        cache_indices=slots,
        query_start_loc=starts,
        metadata=_blocks(starts),
    ).mT


def chunked(
    pool: Pool, prepared: Iterable[Tensor], starts: Tensor, slots: Tensor, has_state: Tensor,
    *, normalizes: bool,
) -> Tensor:  # fmt: skip
    """The recurrence of several sequences from q, k, v, g and beta [tokens, ...], in chunks."""
    q, k, v, g, beta = (x.unsqueeze(0) for x in prepared)
    initial_state = pool.states[slots.long()]
    initial_state[~has_state] = 0
    outputs, states = ops.chunk_gated_delta_rule(
        q=q,
        k=k,
        v=v,
        g=g,
        beta=beta,
        initial_state=initial_state,
        output_final_state=True,
        cu_seqlens=starts,
        use_qk_l2norm_in_kernel=normalizes,
    )
    pool.states[slots.long()] = states.to(pool.states.dtype)
    return outputs.squeeze(0)


def decode(layer: Layer, pool: Pool, tokens: Tokens, slots: Tensor) -> Tensor:
    """Outputs of one token of each sequence; the pool is updated."""
    outputs = torch.empty(len(slots), 1, layer.value_heads, layer.values, dtype=torch.bfloat16)
    ops.fused_recurrent_gated_delta_rule_packed_decode(
        mixed_qkv=convolved(layer, pool, tokens, slots),
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
    """As `decode`, by the kernel that runs when other sequences of the batch are prefilled."""
    starts = torch.arange(len(slots) + 1, dtype=torch.int32)
    return _recurrent(layer, pool, tokens, convolved(layer, pool, tokens, slots), starts, slots)


def verify(
    layer: Layer, pool: Pool, tokens: Tokens, slots: Tensor, accepted: Tensor
) -> tuple[Tensor, Tensor]:
    """Outputs of several draft tokens of each sequence, and the states [tokens, value heads,
    values, keys] after each.

    `slots` [sequences, drafts] hold the states after each draft token; the sequence continues from
    that of its last accepted one.
    """
    mixed, starts = convolved_drafts(layer, pool, tokens, slots, accepted)
    outputs = _recurrent(layer, pool, tokens, mixed, starts, slots, num_accepted_tokens=accepted)
    return outputs, pool.states[slots.long().flatten()]


def _recurrent(
    layer: Layer, pool: Pool, tokens: Tokens, mixed: Tensor, starts: Tensor, slots: Tensor,
    **drafts: Tensor,
) -> Tensor:  # fmt: skip
    q, k, v = (x.unsqueeze(0) for x in layer.divided(mixed))
    outputs, _ = ops.fused_sigmoid_gating_delta_rule_update(
        **layer.gates,
        a=tokens.a,
        b=tokens.b,
        q=q,
        k=k,
        v=v,
        initial_state=pool.states,
        inplace_final_state=True,
        cu_seqlens=starts,
        ssm_state_indices=slots,
        use_qk_l2norm_in_kernel=True,
        **drafts,
    )
    return outputs.squeeze(0)


def convolved_drafts(
    layer: Layer, pool: Pool, tokens: Tokens, slots: Tensor, accepted: Tensor
) -> tuple[Tensor, Tensor]:
    """Draft tokens after the convolution, and where each sequence starts."""
    sequences, drafts = slots.shape
    starts = torch.arange(sequences + 1, dtype=torch.int32) * drafts
    mixed = convolved(
        layer, pool, tokens, slots[:, 0], num_accepted_tokens=accepted, query_start_loc=starts,
        max_query_len=drafts,
    )  # fmt: skip
    return mixed, starts


def norm(layer: Layer, outputs: Tensor, z: Tensor) -> Tensor:
    """The outputs [tokens, value heads, values] after norm and gate."""
    return layernorm_guard.rmsnorm_fn(
        outputs, layer.norm.bfloat16(), None, z=z, eps=L2_EPS, norm_before_gate=True
    )


def _blocks(starts: Tensor) -> SimpleNamespace:
    """The blocks of 8 tokens of all sequences, as vLLM's `compute_causal_conv1d_metadata` lists
    them."""
    counts = -(-starts.diff() // 8)
    sequences = torch.repeat_interleave(torch.arange(len(counts)), counts).int()
    offsets = torch.cat([torch.arange(int(count)) for count in counts]).int()
    pointers = {"batch_ptr": sequences, "token_chunk_offset_ptr": offsets}
    listed = {"tot": len(sequences), "mlist": sequences, "mlist_len": len(sequences)}
    return SimpleNamespace(nums_dict={8: listed | pointers | {"offsetlist": offsets}}, **pointers)


def convolved(
    layer: Layer, pool: Pool, tokens: Tokens, slots: Tensor, **drafts: Tensor | int
) -> Tensor:
    return causal_conv1d_update(
        tokens.mixed.clone(), pool.convolution, layer.convolution, None, "silu",
        conv_state_indices=slots, **drafts,
    )  # fmt: skip
