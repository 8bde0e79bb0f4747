"""Run the Triton kernels with which an engine serves a linear layer, on a CPU, and compare every
output and every state with a float64 recurrence.

    KERNELS/bin/python tools/kernels/interpret.py vllm results/interpreted.jsonl
    KERNELS/bin/python tools/kernels/interpret.py sglang OUT.jsonl 32x32 --faults keys slot gate

Appends a line for each shape: the largest difference of each step as a share of the largest value,
the kernels that ran, and the CPU time. `--faults` runs it again with each planted error, whose
differences must be large.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import triton_on_cpu

triton_on_cpu.install()

import mamba2_layer  # noqa: E402
import torch  # noqa: E402
from faults import FAULTS, exchanged_gates, permuted_keys  # noqa: E402
from served_layer import WIDTH, Layer, Pool, Tokens, gated_norm, recurrence  # noqa: E402
from torch import Tensor  # noqa: E402
from triton.runtime.errors import InterpreterError  # noqa: E402

KEY_HEADS = 2
LENGTHS = (70, 3, 33)  # of a prefill: a chunk and more, less than the convolution, half a chunk
DRAFTS = 3
QWEN_SHAPES = [
    "128x128", "96x128", "64x128", "48x128", "32x128", "16x128", "96x96", "80x96", "64x64",
    "48x48", "32x32",
]  # fmt: skip
"""Those of tools/compile_kernels.py."""
MAMBA_SHAPES = [
    "128x64", "96x64", "80x64", "64x64", "48x64", "33x64", "32x64", "16x64", "12x16",
]  # fmt: skip
SHAPES = {
    "vllm": QWEN_SHAPES,
    "sglang": QWEN_SHAPES,
    "olmo": ["96x192", "64x192", "48x192", "32x192"],
    "mamba2": MAMBA_SHAPES,
    "sglang_mamba2": MAMBA_SHAPES,
    "fla": ["16x16"],
}
Differences = dict[str, float | None]
"""Step -> largest difference, or None if its kernel refuses the shape."""


def run_steps(
    engine: ModuleType, keys: int, values: int, value_heads: int, fault: str | None = None
) -> Differences:
    """Split, prefill, decode, verification of drafts and norm, each from a pool of states."""
    torch.manual_seed(0)
    layer = Layer.random(keys, values, KEY_HEADS, value_heads)
    served = exchanged_gates(layer) if fault == "gate" else layer
    differences: Differences = {}
    if hasattr(engine, "split"):
        differences |= split_differences(engine, layer)
    pool = Pool.random(layer, slots=8)
    slots = torch.tensor([5, 2, 7], dtype=torch.int32)
    read_slots = slots[[1, 0, 2]] if fault == "slot" else slots

    tokens = Tokens.random(layer, sum(LENGTHS))
    starts = torch.tensor([0, *LENGTHS], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    has_state = torch.tensor([False, True, True])
    before = pool.copy()
    before.states[slots[~has_state].long()] = 0
    before.convolution[slots[~has_state].long()] = 0
    sent = permuted_keys(layer, tokens) if fault == "keys" else tokens
    outputs = engine.prefill(served, pool, sent, starts, slots, has_state)
    differences |= compare("prefill", layer, before, pool, tokens, starts, slots, outputs)
    if hasattr(engine, "norm"):
        normed = gated_norm(layer, outputs, tokens.z)
        differences["norm"] = largest(engine.norm(layer, outputs, tokens.z), normed)

    starts = torch.arange(len(slots) + 1, dtype=torch.int32)
    for name in ("decode", "decode_projected", "decode_with_prefill"):
        if not hasattr(engine, name):
            continue
        tokens, before = Tokens.random(layer, len(slots)), pool.copy()
        outputs = getattr(engine, name)(served, pool, tokens, read_slots)
        differences |= compare(name, layer, before, pool, tokens, starts, slots, outputs)
    if hasattr(engine, "verify"):
        differences |= verification_differences(engine, layer, served)
    return differences


def compare(
    name: str, layer: Layer, before: Pool, after: Pool, tokens: Tokens, starts: Tensor,
    slots: Tensor, outputs: Tensor,
) -> Differences:  # fmt: skip
    """Largest differences of outputs, of all states, and of the inputs kept for the convolution;
    slots of other sequences must stay as they were."""
    expected, due = [], before.copy()
    due.states = due.states.double()
    for n, slot in enumerate(slots.tolist()):
        part = tokens.between(int(starts[n]), int(starts[n + 1]))
        sequence = recurrence(layer, part, before.convolution[slot], before.states[slot])
        expected.append(sequence.outputs)
        due.states[slot] = sequence.states[-1]
        due.convolution[slot] = sequence.inputs[1 - WIDTH :].mT.bfloat16()
    # Slots of new sequences were cleared in `before`, and used since; all others are compared too.
    return {
        f"{name}: outputs": largest(outputs, torch.cat(expected)),
        f"{name}: states": largest(after.states, due.states),
        f"{name}: convolution": largest(after.convolution, due.convolution),
    }


def verification_differences(engine: ModuleType, layer: Layer, served: Layer) -> Differences:
    """Draft tokens of speculative decoding, after one, two and three accepted ones."""
    slots = torch.tensor([[5, 9, 3], [2, 7, 8], [6, 1, 4]], dtype=torch.int32)
    accepted = torch.tensor([1, 2, 3], dtype=torch.int32)
    pool = Pool.random(layer, slots=10, kept_inputs=WIDTH - 1 + DRAFTS - 1)
    tokens = Tokens.random(layer, slots.numel())
    before = pool.copy()
    outputs, states = engine.verify(served, pool, tokens, slots, accepted)
    expected = []
    for n, count in enumerate(accepted.tolist()):
        window = before.convolution[slots[n, 0], :, count - 1 : count + WIDTH - 2]
        state = before.states[slots[n, count - 1]]
        drafts = tokens.between(n * DRAFTS, (n + 1) * DRAFTS)
        expected.append(recurrence(layer, drafts, window, state))
    return {
        "verify: outputs": largest(outputs, torch.cat([part.outputs for part in expected])),
        "verify: states": largest(states, torch.cat([part.states for part in expected])),
    }


def split_differences(engine: ModuleType, layer: Layer) -> Differences:
    """The projection in the order of Qwen3-Next (by key head) and of Qwen3.5 (by part)."""
    tokens = Tokens.random(layer, 5)
    parts = [*layer.divided(tokens.mixed), tokens.z]
    gates = [tokens.b, tokens.a]
    layouts = {
        False: ([x.flatten(1) for x in parts], gates),
        True: (
            [x.reshape(5, layer.key_heads, -1) for x in parts],
            [x.view(5, layer.key_heads, -1) for x in gates],
        ),
    }
    differences = {}
    for interleaved, (qkvz, ba) in layouts.items():
        packed = [torch.cat(each, -1).flatten(1).contiguous() for each in (qkvz, ba)]
        name = "split by key head" if interleaved else "split by part"
        try:
            divided = engine.split(layer, *packed, interleaved=interleaved)
        except InterpreterError as refusal:
            print(f"{name}: {refusal}", file=sys.stderr)
            differences[name] = None
            continue
        differences[name] = max(
            largest(getattr(divided, part).reshape_as(getattr(tokens, part)), getattr(tokens, part))
            for part in ("mixed", "z", "a", "b")
        )
    return differences


def largest(values: Tensor, expected: Tensor) -> float:
    """The largest difference as a share of the largest expected value; NaN counts as infinite."""
    difference = (values.double() - expected.double()).abs().max() / expected.abs().max()
    return float(difference.nan_to_num(float("inf")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("steps", choices=SHAPES)
    parser.add_argument("results", type=Path)
    parser.add_argument("shapes", nargs="*")
    parser.add_argument("--value-heads", type=int, default=4, help=f"of {KEY_HEADS} key heads")
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=[])
    arguments = parser.parse_args()
    engine = importlib.import_module(f"{arguments.steps}_steps")
    package = getattr(engine, "PACKAGE", engine.MODULES.rstrip("."))
    triton_on_cpu.mend_modules(engine.MODULES)
    for shape in arguments.shapes or SHAPES[arguments.steps]:
        for fault in (None, *arguments.faults):
            line = {
                "steps": arguments.steps,
                "engine": f"{package} {importlib.metadata.version(package)}",
                "triton": importlib.metadata.version("triton"),
                "shape": shape,
                **({"fault": fault} if fault else {}),
                "value_heads": arguments.value_heads,
                **interpreted(engine, *map(int, shape.split("x")), arguments.value_heads, fault),
            }
            print(json.dumps(line), flush=True)
            with arguments.results.open("a") as file:
                file.write(json.dumps(line) + "\n")


def interpreted(
    engine: ModuleType, keys: int, values: int, value_heads: int, fault: str | None
) -> dict[str, Any]:
    """Differences of all steps for one shape, the kernels that ran, and the CPU time."""
    started = time.process_time()
    with triton_on_cpu.launched_kernels() as kernels:
        if engine.__name__.endswith("mamba2_steps"):
            pairs = mamba2_layer.run_steps(engine, keys, values)
            differences: Differences = {name: largest(*pairs[name]) for name in pairs}
        else:
            differences = run_steps(engine, keys, values, value_heads, fault)
    return {
        "differences": {
            name: value if value is None else float(f"{value:.2g}")
            for name, value in differences.items()
        },
        "kernels": sorted(kernels),
        "cpu_seconds": round(time.process_time() - started, 1),
    }


if __name__ == "__main__":
    main()
