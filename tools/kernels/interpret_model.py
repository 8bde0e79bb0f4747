"""Serve a trained Qwen3.5 checkpoint with an engine's interpreted kernels inside transformers, and
compare its logits and recall answers with those of transformers.

    KERNELS/bin/python tools/kernels/interpret_model.py vllm OUT.jsonl MODEL...

Sequences of associative recall are prefilled together, and their last tokens decoded one by one.
Everything outside the linear layers' kernels is transformers in bfloat16. A line for each MODEL
says how far the logits are from transformers in float32, next to transformers in bfloat16.
`--faults` runs it again with each planted error, whose differences must be large.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import triton_on_cpu

triton_on_cpu.install()
# transformers takes fla's kernels wherever fla can be imported, and fails on a CPU.
sys.modules["fla"] = sys.modules["causal_conv1d"] = None  # type: ignore[assignment]

import torch  # noqa: E402
from faults import FAULTS, exchanged_gates, permuted_keys  # noqa: E402
from served_layer import Layer, Pool, Tokens  # noqa: E402
from torch import Tensor  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

SEQUENCES, PAIRS, DECODED = 2, 18, 4


class ServedMixer(torch.nn.Module):
    """A linear layer of transformers' model whose kernels are those of an engine."""

    def __init__(self, mixer: Any, engine: ModuleType, fault: str | None) -> None:
        super().__init__()
        self.mixer, self.engine, self.fault = mixer, engine, fault
        layer = Layer(
            mixer.head_k_dim,
            mixer.head_v_dim,
            mixer.num_k_heads,
            mixer.num_v_heads,
            convolution=mixer.conv1d.weight.detach().squeeze(1),
            A_log=mixer.A_log.detach().float(),
            dt_bias=mixer.dt_bias.detach().float(),
            norm=mixer.norm.weight.detach(),
        )
        self.layer = exchanged_gates(layer) if fault == "gate" else layer
        self.pool = Pool.random(self.layer, slots=2 * SEQUENCES)
        self.slots = torch.arange(2 * SEQUENCES - 1, 0, -2, dtype=torch.int32)  # scattered

    def forward(self, hidden_states: Tensor, **_: Any) -> Tensor:
        sequences, time_steps, _width = hidden_states.shape
        flat = hidden_states.flatten(0, 1)
        z = self.mixer.in_proj_z(flat).view(len(flat), -1, self.layer.values)
        tokens = Tokens(
            self.mixer.in_proj_qkv(flat), z, self.mixer.in_proj_a(flat), self.mixer.in_proj_b(flat)
        )
        if self.fault == "keys":
            tokens = permuted_keys(self.layer, tokens)
        if time_steps > 1:
            starts = torch.arange(sequences + 1, dtype=torch.int32) * time_steps
            is_new = torch.zeros(sequences, dtype=torch.bool)
            outputs = self.engine.prefill(self.layer, self.pool, tokens, starts, self.slots, is_new)
        else:
            slots = self.slots.flip(0) if self.fault == "slot" else self.slots
            outputs = self.engine.decode(self.layer, self.pool, tokens, slots)
        normed = self.engine.norm(self.layer, outputs, z)
        return self.mixer.out_proj(normed.reshape(sequences, time_steps, -1))


def logits(
    path: Path, ids: Tensor, dtype: torch.dtype, engine: ModuleType | None = None,
    fault: str | None = None,
) -> Tensor:  # fmt: skip
    """[sequences, tokens, vocabulary]: a prefill, then DECODED tokens one by one."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval()
    for layer in model.model.layers if engine else ():
        if hasattr(layer, "linear_attn"):
            layer.linear_attn = ServedMixer(layer.linear_attn, engine, fault)
    result = model(ids[:, :-DECODED], use_cache=True)
    parts = [result.logits]
    for step in range(DECODED, 0, -1):
        token = ids[:, [-step]]
        result = model(token, past_key_values=result.past_key_values, use_cache=True)
        parts.append(result.logits)
    return torch.cat(parts, 1).float()


def recall_sequences() -> tuple[Tensor, Tensor]:
    """Ids [sequences, 4 PAIRS]: pairs of a key and a value, then all again in another order; and
    the positions of the second half's keys, whose next token is known."""
    generator = torch.Generator().manual_seed(0)
    rows = []
    for _ in range(SEQUENCES):
        keys = torch.randperm(1024, generator=generator)[:PAIRS] + 1024
        values = torch.randperm(1024, generator=generator)[:PAIRS] + 2048
        pairs = torch.stack([keys, values], 1)
        again = pairs[torch.randperm(PAIRS, generator=generator)]
        rows.append(torch.cat([pairs, again]).flatten())
    return torch.stack(rows), torch.arange(2 * PAIRS, 4 * PAIRS, 2)


@torch.no_grad()
def compare(path: Path, engine: ModuleType, fault: str | None) -> dict[str, Any]:
    """How far the engine is from transformers in float32, and transformers in bfloat16 without a
    fault."""
    ids, places = recall_sequences()
    answers = ids[:, places + 1]
    reference = logits(path, ids, torch.float32)
    computed = {"engine": logits(path, ids, torch.bfloat16, engine, fault)}
    if fault is None:
        computed["transformers in bfloat16"] = logits(path, ids, torch.bfloat16)
    recalled = reference.argmax(-1)[:, places] == answers
    line: dict[str, Any] = {
        "tokens": ids.numel(), "answers": answers.numel(), "recall": int(recalled.sum())
    }  # fmt: skip
    for name, values in computed.items():
        difference = (values - reference).abs()
        choices = values.argmax(-1)
        line[name] = {
            "mean difference of a logit": float(f"{difference.mean():.2g}"),
            "largest": float(f"{difference.max():.2g}"),
            "same choice": int((choices == reference.argmax(-1)).sum()),
            "recall": int((choices[:, places] == answers).sum()),
        }
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("steps", choices=("vllm", "sglang"))
    parser.add_argument("results", type=Path)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=[])
    arguments = parser.parse_args()
    engine = importlib.import_module(f"{arguments.steps}_steps")
    triton_on_cpu.mend_modules(engine.MODULES)
    for path in arguments.models:
        for fault in (None, *arguments.faults):
            started = time.process_time()
            line = {"steps": arguments.steps, "model": path.name}
            line |= {"fault": fault} if fault else {}
            line |= compare(path, engine, fault)
            line["cpu_seconds"] = round(time.process_time() - started, 1)
            print(json.dumps(line), flush=True)
            with arguments.results.open("a") as file:
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
