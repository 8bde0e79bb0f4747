"""Speed and memory of a training step against the key width: a mixer, and a whole model.

Tables `tab:mixer_scaling` and `tab:speedup_whole_model`.

    python studies/paper/speed.py --kind delta_net [--paper]

Random weights in statetrim.portable on a CPU, in fla where there is a GPU. A step is a forward and
a backward pass. The widths take turns in every round, so that what else the machine does hits all
of them; a row holds every round's seconds, by the CPU's clock of this thread or by CUDA events.
Memory is the peak on a GPU; on a CPU the bytes that the forward pass keeps for the backward pass,
which torch tells exactly. `--paper` is the setting of its tables (batch 32, 2,048 tokens, 16 heads,
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
    """Of the stock config class, with keys of `width` and values of 128."""
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
    """On a GPU fla's classes, whose kernels the paper times; here portable's."""
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
    size |= {
        name: int(number)
        for name, _, number in (measured.partition("=") for measured in options.set)
    }
    rows = Rows(options.results)
    for scope in ("mixer", "model"):
        cases: list[Row] = [
            {"kind": options.kind, "what": scope, "width": width, "device": device, **size}
            for width in options.widths
        ]
        if all(map(rows.has, cases)):  # rounds are only comparable within one run
            continue
        work = [
            step(build(options.kind, scope, row["width"], size, device), scope, size, device)
            for row in cases
        ]
        peak_bytes = [
            memory(measured, device) for measured in work
        ]  # the first pass, which warms up
        rounds = [[seconds(measured, device) for measured in work] for _ in range(options.rounds)]
        for row, round_seconds, byte_count in zip(
            cases, zip(*rounds, strict=True), peak_bytes, strict=True
        ):
            rows.add(
                row
                | {
                    "seconds": [round(measured, 5) for measured in round_seconds],
                    "bytes": byte_count,
                }
            )
            print(*row.values(), min(round_seconds), byte_count, flush=True)


if __name__ == "__main__":
    main()
