"""The Triton kernels with which vLLM 0.32 serves Mamba-2, called in the order of
`vllm/model_executor/layers/mamba/mamba_mixer2.py` after its convolution, which is the one of
`vllm_steps`."""

from __future__ import annotations

import torch
from mamba2_layer import CHUNK, STARTS
from torch import Tensor
from vllm_steps import MODULES  # first: it prepares vLLM for a machine without a GPU

# isort: split
from vllm.model_executor.layers.mamba.ops import mamba_ssm
from vllm.model_executor.layers.mamba.ops.ssd_combined import mamba_chunk_scan_combined_varlen

__all__ = ["MODULES", "decode", "prefill"]

mamba_ssm.get_ssm_device_name = lambda: "NVIDIA_H100_80GB_HBM3"  # which chooses tile sizes


def prefill(
    inputs: dict[str, Tensor], weights: dict[str, Tensor], states: Tensor, outputs: Tensor
) -> Tensor:
    """Last states of two sequences that begin with `states`; fills `outputs`."""
    final: Tensor = mamba_chunk_scan_combined_varlen(
        **inputs, **weights, chunk_size=CHUNK, cu_seqlens=torch.tensor(STARTS, dtype=torch.int32),
        # chunks end where sequences do: 32 and 8 tokens of the first, 3 of the second
        cu_chunk_seqlens=torch.tensor([0, 32, 40, 43], dtype=torch.int32), out=outputs,
        last_chunk_indices=torch.tensor([1, 2]), seq_idx=torch.tensor([0, 0, 1], dtype=torch.int32),
        initial_states=states, dt_softplus=True, state_dtype=torch.float32,
    )  # fmt: skip
    return final


def decode(arguments: dict[str, Tensor], pool: Tensor, slots: Tensor, outputs: Tensor) -> Tensor:
    """The pool after a token of the sequences in `slots`; fills `outputs`."""
    mamba_ssm.selective_state_update(
        pool, **arguments, dt_softplus=True, state_batch_indices=slots,
        dst_state_batch_indices=slots, out=outputs,
    )  # fmt: skip
    return pool
