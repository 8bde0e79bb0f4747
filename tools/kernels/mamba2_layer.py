"""A Mamba-2 layer as an engine serves it after its convolution, against a float64 recurrence: the
scan of a prefill in chunks, the update of states in decoding, and of draft tokens."""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor
from torch.nn import functional

HEADS, GROUPS, CHUNK, DRAFTS = 4, 2, 32, 3
STARTS = (0, 40, 43)
"""Of two sequences in a prefill: of a chunk and more, and of less than a chunk."""


def run_steps(engine: ModuleType, keys: int, values: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Step -> what the kernels computed and what is expected, for groups with `keys` channels."""
    torch.manual_seed(0)
    weights = {"A": -torch.rand(HEADS), "D": torch.randn(HEADS), "dt_bias": torch.randn(HEADS)}
    inputs, states = _inputs(STARTS[-1], keys, values), torch.randn(2, HEADS, values, keys)
    outputs = torch.empty(STARTS[-1], HEADS, values, dtype=torch.bfloat16)
    final = engine.prefill(inputs, weights, states, outputs)
    parts = [_scan(inputs, weights, slice(*STARTS[n : n + 2]), states[n]) for n in range(2)]
    steps = {
        "prefill: outputs": (outputs, torch.cat([outputs for outputs, _ in parts])),
        "prefill: states": (final, torch.stack([states[-1] for _, states in parts])),
    }

    slots = torch.tensor([4, 1], dtype=torch.int32)
    by_channel = {name: x.unsqueeze(-1).expand(-1, values) for name, x in weights.items()}
    by_channel["A"] = by_channel["A"].unsqueeze(-1).expand(-1, -1, keys)
    for step, count in (("decode", 1), ("verify", DRAFTS)):
        if not hasattr(engine, step):
            continue
        pool, tokens = torch.randn(6, HEADS, values, keys), _inputs(2 * count, keys, values)
        due = pool.double()
        outputs = torch.empty(2 * count, HEADS, values, dtype=torch.bfloat16)
        arguments = tokens | {"dt": tokens["dt"].unsqueeze(-1).expand(-1, -1, values)}
        computed = getattr(engine, step)(arguments | by_channel, pool, slots, outputs)
        parts = [
            _scan(tokens, weights, slice(n * count, (n + 1) * count), due[slot])
            for n, slot in enumerate(slots)
        ]
        expected = torch.stack([states for _, states in parts])
        if step == "decode":  # in the pool, where all other slots stay as they were
            due[slots.long()] = expected[:, -1]
            expected = due
        steps[f"{step}: outputs"] = outputs, torch.cat([outputs for outputs, _ in parts])
        steps[f"{step}: states"] = computed, expected
    return steps


def _inputs(tokens: int, keys: int, values: int) -> dict[str, Tensor]:
    shapes = {"x": (HEADS, values), "dt": (HEADS,), "B": (GROUPS, keys), "C": (GROUPS, keys)}
    return {name: torch.randn(tokens, *shape).bfloat16() for name, shape in shapes.items()}


def _scan(
    inputs: dict[str, Tensor], weights: dict[str, Tensor], tokens: slice, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Outputs [tokens, heads, values] and states [tokens, heads, values, keys], in float64."""
    x, dt, b, c = (inputs[name][tokens].double() for name in ("x", "dt", "B", "C"))
    b, c = (each.repeat_interleave(HEADS // GROUPS, 1) for each in (b, c))
    dt = functional.softplus(dt + weights["dt_bias"].double())
    state, outputs, states = state.double(), [], []
    for t in range(len(x)):
        decay = (dt[t] * weights["A"].double()).exp()[:, None, None]
        written = torch.einsum("hv,hk->hvk", dt[t, :, None] * x[t], b[t])
        state = decay * state + written
        read = torch.einsum("hvk,hk->hv", state, c[t])
        outputs.append(read + weights["D"].double()[:, None] * x[t])
        states.append(state)
    return torch.stack(outputs), torch.stack(states)
