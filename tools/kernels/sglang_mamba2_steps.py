"""The Triton kernels with which SGLang 0.5.23 serves Mamba-2, called in the order of
`sglang/srt/layers/attention/mamba/mamba.py` after its convolution, which is the one of
`sglang_steps`."""

from __future__ import annotations

import torch
from mamba2_layer import CHUNK, DRAFTS, STARTS
from sglang.kernels.ops.mamba.triton_ops.mamba_ssm import selective_state_update
from sglang.kernels.ops.mamba.triton_ops.ssd_combined import mamba_chunk_scan_combined
from torch import Tensor

MODULES = "sglang."
PACKAGE = "sglang"


def prefill(
    inputs: dict[str, Tensor], weights: dict[str, Tensor], states: Tensor, outputs: Tensor
) -> Tensor:
    """Last states of two sequences that begin with `states`; fills `outputs`."""
    lengths = torch.tensor(STARTS).diff()
    _, final, _ = mamba_chunk_scan_combined(
        **{name: x.unsqueeze(0) for name, x in inputs.items()}, **weights, chunk_size=CHUNK,
        seq_idx=torch.arange(2, dtype=torch.int32).repeat_interleave(lengths).unsqueeze(0),
        # 32 tokens of the first sequence; of the second chunk 8 of the first, then the others
        chunk_indices=torch.tensor([0, 1, 1], dtype=torch.int32),
        chunk_offsets=torch.tensor([0, 0, 8], dtype=torch.int32),
        cu_seqlens=torch.tensor(STARTS, dtype=torch.int32), initial_states=states,
        return_varlen_states=True, return_track_states=True, dt_softplus=True,
        out=outputs.unsqueeze(0), state_dtype=torch.float32,
    )  # fmt: skip
    return final


def decode(arguments: dict[str, Tensor], pool: Tensor, slots: Tensor, outputs: Tensor) -> Tensor:
    """The pool after a token of the sequences in `slots`; fills `outputs`."""
    selective_state_update(
        pool, **arguments, dt_softplus=True, state_batch_indices=slots, out=outputs
    )
    return pool


def verify(arguments: dict[str, Tensor], pool: Tensor, slots: Tensor, outputs: Tensor) -> Tensor:
    """States after each draft token of the sequences in `slots`; fills `outputs`. The pool must
    stay as it is."""
    drafts = {name: arguments[name].unflatten(0, (-1, DRAFTS)) for name in ("x", "dt", "B", "C")}
    buffer = pool.new_zeros(len(slots), DRAFTS, *pool.shape[1:])
    before = pool.clone()
    selective_state_update(
        pool, **arguments | drafts, dt_softplus=True, state_batch_indices=slots,
        out=outputs.unflatten(0, (-1, DRAFTS)), disable_state_update=True,
        intermediate_states_buffer=buffer, cache_steps=DRAFTS,
        intermediate_state_indices=torch.arange(len(slots), dtype=torch.int32),
    )  # fmt: skip
    assert torch.equal(pool, before)
    return buffer
