"""Speed and memory of a training step by key width, for a mixer and for a whole model.

Tables `tab:mixer_scaling` and `tab:speedup_whole_model`.

    python studies/paper/speed.py --kind delta_net [--paper]

Random weights in statetrim.portable on a CPU, in fla where there is a GPU. A step is a forward and
a backward pass. Every round measures all widths, so that other load on the machine affects all of
them; a row holds every round's seconds, by the CPU clock of this thread or by CUDA events. Memory
is the peak on a GPU; on a CPU the bytes that the forward pass saves for the backward pass, which
torch reports exactly. `--paper` is the setting of its tables (batch 32, 2,048 tokens, 16 heads,
hidden size 2,048, values of 128) and wants a GPU of 80 GB; the default is a small part of it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from samples import Row, Rows, quiet
from statetrim import portable

WIDTHS = (128, 64, 32, 16)
VALUES = 128
SMALL = {"batch": 2, "time": 512, "heads": 2, "hidden": 256, "layers": 2, "vocabulary": 512}
PAPER = {"batch": 32, "time": 2048, "heads": 16, "hidden": 2048, "layers": 24, "vocabulary": 32000}


def config(kind: str, width: int, size: dict[str, int]) -> Any:
    """A config with key heads of `width` channels and value heads of 128."""
    heads, hidden = size["heads"], size["hidden"]
    common: dict[str, Any] = {
        "hidden_size": hidden,
        "num_heads": heads,
        "num_hidden_layers": size["layers"],
        "vocab_size": size["vocabulary"],
        "intermediate_size": 2 * hidden,
    }
    if kind == "delta_net":
        expand: dict[str, Any] = {
            "expand_k": heads * width / hidden,
            "expand_v": heads * VALUES / hidden,
        }
        return portable.DeltaNetConfig(**common, **expand)
    return portable.GatedDeltaNetConfig(**common, head_dim=width, expand_v=VALUES / width)


def build(kind: str, scope: str, width: int, size: dict[str, int], device: str) -> nn.Module:
    """A mixer or model with random weights: on a GPU of fla, as in the paper, else portable."""
    torch.manual_seed(0)
    settings = config(kind, width, size)
    if device == "cuda":
        import fla  # noqa: F401  (registers its classes)
        from transformers import AutoModelForCausalLM

        dtype = torch.bfloat16
        model: Any = AutoModelForCausalLM.from_config(settings, torch_dtype=dtype).to(device)
    else:
        classes = {
            "delta_net": portable.DeltaNetForCausalLM,
            "gated_deltanet": portable.GatedDeltaNetForCausalLM,
        }
        model = classes[kind](settings)
    module: nn.Module = model.model.layers[0].attn if scope == "mixer" else model
    return module.train()


def step(module: nn.Module, scope: str, size: dict[str, int], device: str) -> Callable[[], None]:
    dtype = next(module.parameters()).dtype
    shape = size["batch"], size["time"]
    if scope == "mixer":
        hidden_states = torch.randn(*shape, size["hidden"], device=device, dtype=dtype)

        def work() -> None:
            result = module(hidden_states=hidden_states)
            out: Tensor = result[0] if isinstance(result, tuple) else result
            torch.autograd.backward(out.float().square().mean())
    else:
        ids = torch.randint(size["vocabulary"], shape, device=device)

        def work() -> None:
            module(input_ids=ids, labels=ids, use_cache=False).loss.backward()

    return work


def seconds(work: Callable[[], None], device: str) -> float:
    if device == "cuda":
        event: Any = torch.cuda.Event
        begin, end = (event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end)) / 1e3
    start = time.thread_time()
    work()
    return time.thread_time() - start


def memory(work: Callable[[], None], device: str) -> int:
    """Bytes: the peak on a GPU, or what one forward pass keeps for the backward pass."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        work()
        return int(torch.cuda.max_memory_allocated())
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        work()
    return sum(kept.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--kind", choices=["delta_net", "gated_deltanet"], default="delta_net")
    parser.add_argument("--paper", action="store_true", help="the setting of the paper's tables")
    parser.add_argument("--widths", nargs="+", type=int, default=list(WIDTHS))
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--set", nargs="*", default=[], metavar="SIZE=NUMBER")
    parser.add_argument("--results", type=Path, default=Path("results/paper/speed.jsonl"))
    options = parser.parse_args()
    quiet()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    size = dict(PAPER if options.paper else SMALL)
    for argument in options.set:
        name, _, number = argument.partition("=")
        size[name] = int(number)
    rows = Rows(options.results)
    for scope in ("mixer", "model"):
        cases: list[Row] = [
            {"kind": options.kind, "what": scope, "width": width, "device": device, **size}
            for width in options.widths
        ]
        if all(map(rows.has, cases)):  # rounds are only comparable within one run
            continue
        steps = []
        for row in cases:
            module = build(options.kind, scope, row["width"], size, device)
            steps.append(step(module, scope, size, device))
        byte_counts = [memory(work, device) for work in steps]  # this pass is the warm-up too
        spent: list[list[float]] = [[] for _ in steps]
        for _ in range(options.rounds):
            for work, row_seconds in zip(steps, spent, strict=True):
                row_seconds.append(seconds(work, device))
        for row, row_seconds, byte_count in zip(cases, spent, byte_counts, strict=True):
            rounded = [round(value, 5) for value in row_seconds]
            rows.add(row | {"seconds": rounded, "bytes": byte_count})
            print(*row.values(), min(row_seconds), byte_count, flush=True)


if __name__ == "__main__":
    main()
