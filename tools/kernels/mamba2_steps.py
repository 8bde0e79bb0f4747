"""The Triton kernels with which vLLM 0.32 serves Mamba-2, called in the order of
`vllm/model_executor/layers/mamba/mamba_mixer2.py` after its convolution, which is the one of
`vllm_steps`: scan of a prefill in chunks, and the update of states in decoding."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional
from vllm_steps import MODULES  # first: it prepares vLLM for a machine without a GPU

# isort: split
from vllm.model_executor.layers.mamba.ops import mamba_ssm
from vllm.model_executor.layers.mamba.ops.ssd_combined import mamba_chunk_scan_combined_varlen

__all__ = ["MODULES", "run_steps"]

mamba_ssm.get_ssm_device_name = lambda: "NVIDIA_H100_80GB_HBM3"  # which chooses tile sizes
HEADS, GROUPS, CHUNK = 4, 2, 32


def run_steps(keys: int, values: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Step -> what the kernels computed and what is expected, for groups with `keys` channels."""
    torch.manual_seed(0)
    weights = {"A": -torch.rand(HEADS), "D": torch.randn(HEADS), "dt_bias": torch.randn(HEADS)}
    starts = torch.tensor([0, 40, 43], dtype=torch.int32)
    inputs, states = _inputs(43, keys, values), torch.randn(2, HEADS, values, keys)
    outputs = torch.empty(43, HEADS, values, dtype=torch.bfloat16)
    final = mamba_chunk_scan_combined_varlen(
        **inputs, **weights, chunk_size=CHUNK, cu_seqlens=starts, out=outputs,
        # chunks end where sequences do: 32 and 8 tokens of the first, 3 of the second
        cu_chunk_seqlens=torch.tensor([0, 32, 40, 43], dtype=torch.int32),
        last_chunk_indices=torch.tensor([1, 2]), seq_idx=torch.tensor([0, 0, 1], dtype=torch.int32),
        initial_states=states, dt_softplus=True, state_dtype=torch.float32,
    )  # fmt: skip
    pairs = [_scan(inputs, weights, slice(*starts[n : n + 2]), states[n]) for n in range(2)]
    expected = torch.cat([pair[0] for pair in pairs]), torch.stack([pair[1] for pair in pairs])
    steps = {"prefill: outputs": (outputs, expected[0]), "prefill: states": (final, expected[1])}

    pool, slots = torch.randn(6, HEADS, values, keys), torch.tensor([4, 1], dtype=torch.int32)
    due, token = pool.double(), _inputs(2, keys, values)
    outputs = torch.empty(2, HEADS, values, dtype=torch.bfloat16)
    by_channel = {name: x.unsqueeze(-1).expand(-1, values) for name, x in weights.items()}
    by_channel["A"] = by_channel["A"].unsqueeze(-1).expand(-1, -1, keys)
    mamba_ssm.selective_state_update(
        pool, token["x"], token["dt"].unsqueeze(-1).expand(-1, -1, values), B=token["B"],
        C=token["C"], **by_channel, dt_softplus=True, state_batch_indices=slots,
        dst_state_batch_indices=slots, out=outputs,
    )  # fmt: skip
    pairs = [_scan(token, weights, slice(n, n + 1), due[slot]) for n, slot in enumerate(slots)]
    due[slots.long()] = torch.stack([pair[1] for pair in pairs])
    expected_outputs = torch.cat([pair[0] for pair in pairs])
    return steps | {"decode: outputs": (outputs, expected_outputs), "decode: states": (pool, due)}


def _inputs(tokens: int, keys: int, values: int) -> dict[str, Tensor]:
    shapes = {"x": (HEADS, values), "dt": (HEADS,), "B": (GROUPS, keys), "C": (GROUPS, keys)}
    return {name: torch.randn(tokens, *shape).bfloat16() for name, shape in shapes.items()}


def _scan(
    inputs: dict[str, Tensor], weights: dict[str, Tensor], tokens: slice, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Outputs [tokens, heads, values] and the last state [heads, values, keys], in float64."""
    x, dt, b, c = (inputs[name][tokens].double() for name in ("x", "dt", "B", "C"))
    b, c = (each.repeat_interleave(HEADS // GROUPS, 1) for each in (b, c))
    dt = functional.softplus(dt + weights["dt_bias"].double())
    state, outputs = state.double(), []
    for t in range(len(x)):
        decay = (dt[t] * weights["A"].double()).exp()[:, None, None]
        written = torch.einsum("hv,hk->hvk", dt[t, :, None] * x[t], b[t])
        state = decay * state + written
        read = torch.einsum("hvk,hk->hv", state, c[t])
        outputs.append(read + weights["D"].double()[:, None] * x[t])
    return torch.stack(outputs), state
