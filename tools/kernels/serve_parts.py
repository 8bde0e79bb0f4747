"""Serve a checkpoint with widths by layer in vLLM's layers, its wide layers in parts.

    PYTHONPATH=plugins/vllm:src KERNELS/bin/python tools/kernels/serve_parts.py MODEL [-o OUT.jsonl]
        [--how parts|undivided|swapped|shared] [--ranks 2] [--short] [--blocks 18]

Requests are prefilled in pieces and decoded together, and one continues from a cached prefix
(`small_engine`). Prints how far the logits are from those of transformers in
float32, which reads each sequence at once, and how many sequences fit by vLLM's functions and by
statetrim's; a line is added to OUT. `undivided` gives every layer a page of the widest. Two
faults show that the comparison finds them: `swapped` computes the heads of the first two parts of a
layer with each other's inputs, `shared` gives them one cache. With `--ranks 2` two processes have
half of the heads each. With few `--blocks` in the cache requests are preempted and resumed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
from pathlib import Path
from typing import Any

MEMORY = 2**24  # bytes of cache for which sequences are counted
MANY_BLOCKS = 1000
HOW = ("parts", "undivided", "swapped", "shared")


def serve(
    model: Path, how: str, rank: int, ranks: int, rendezvous: Path, short: bool, blocks: int
) -> Any:
    sys.modules["fla"] = sys.modules["causal_conv1d"] = None  # type: ignore[assignment]
    import vllm_on_cpu  # noqa: F401  # isort: skip
    import small_engine
    import statetrim_vllm.specs
    import torch

    torch.set_num_threads(1)
    small_engine.join_ranks(rank, ranks, rendezvous)

    if how == "undivided":
        statetrim_vllm.specs.number_of_parts = lambda *_: 1
    engine = small_engine.Engine(model, blocks=blocks, ranks=ranks)
    for layer in engine.layers.values():
        if has_parts(layer):
            plant(how, *layer.parts[:2])
    block = engine.vllm_config.cache_config.block_size
    startup = {"vllm": engine.startup(MEMORY), "statetrim": calculated(model, ranks)}
    groups = [len(group.layer_names) for group in engine.cache_config.kv_cache_groups]
    generator = torch.Generator().manual_seed(0)
    long, other = torch.randint(1, 500, (2, 2 * block + 5), generator=generator).tolist()
    prompts = {"long": (long, 4), "short": (other[: block - 3], 6)}  # grow over a block
    if blocks < MANY_BLOCKS:
        # Both are admitted before all of their blocks are free, so that one is preempted.
        engine.scheduler.scheduler_reserve_full_isl = False
        long, other = torch.randint(1, 500, (2, 4 * block + 5), generator=generator).tolist()
        prompts = {"long": (long, 4), "other": (other[: 3 * block + 3], 4)}
    engine.scheduler.max_num_scheduled_tokens = block + block // 2  # so that prompts are divided
    results = compared(engine, prompts)
    if not short:
        continued = long[: 2 * block + 3] + other[:5]
        results |= compared(engine, {"same prefix": (continued, 3)})
    return {
        "model": model.name,
        "how": how,
        "ranks": ranks,
        "blocks": blocks,
        "blocks_and_sequences": startup,
        "tokens_per_block": block,
        "layers_by_group": groups,
        "parts": {n: len(layer.parts) for n, layer in engine.layers.items() if has_parts(layer)},
        "requests": results,
    }


def calculated(model: Path, ranks: int) -> tuple[int, float]:
    """Blocks and sequences in `MEMORY` as statetrim computes them, with the plugin."""
    import small_engine

    import statetrim as st
    from statetrim.serving.capacity.arithmetic import Settings
    from statetrim.serving.capacity.compare import capacity
    from statetrim.serving.engines import find_engine

    kv_bytes = 4 * ranks  # every rank computes softmax layers with all heads, in float32
    settings = Settings(MEMORY, small_engine.CONTEXT, kv_bytes=kv_bytes, devices=ranks)
    checkpoint = st.open(model)
    fit = capacity(checkpoint, checkpoint.geometry, settings, find_engine("vllm"))
    return fit.blocks, fit.sequences


def has_parts(layer: Any) -> bool:
    return bool(getattr(layer, "parts", ()))


def plant(how: str, first: Any, second: Any) -> None:
    if how == "swapped":
        first.channels, second.channels = second.channels, first.channels
    elif how == "shared":
        # By its name a part finds its blocks, which differ between groups of the cache.
        second.kv_cache, second.prefix = first.kv_cache, first.prefix


def compared(engine: Any, prompts: dict[str, tuple[list[int], int]]) -> dict[str, Any]:
    """Run the prompts, each for a number of new tokens: how far their logits are from those of
    transformers."""
    import torch

    for name, (ids, new_tokens) in prompts.items():
        engine.add(name, ids, new_tokens)
    differences = {}
    for name, request in engine.run().items():
        with torch.inference_mode():
            expected = engine.model(torch.tensor([request.ids])).logits[0]
        positions = sorted(request.logits)
        logits = torch.stack([request.logits[position] for position in positions])
        expected = expected[positions]
        difference = (logits - expected).abs()
        differences[name] = {
            "computed": len(positions),
            "cached": engine.cached_tokens[name],
            "preempted": name in engine.preempted,
            "largest_difference": float(difference.max()),
            "mean_difference": float(difference.mean()),
            "same_choice": float((logits.argmax(-1) == expected.argmax(-1)).float().mean()),
            "deviation_of_logits": float(expected.std()),
            "sum_of_logits": float(logits.double().sum()),
        }
    engine.requests.clear()
    return differences


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--how", choices=HOW, default="parts")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--blocks", type=int, default=MANY_BLOCKS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        shared = arguments.ranks, Path(folder) / "ranks", arguments.short, arguments.blocks
        jobs = [(arguments.model, arguments.how, rank, *shared) for rank in range(arguments.ranks)]
        with multiprocessing.get_context("spawn").Pool(arguments.ranks) as pool:
            results = pool.starmap(serve, jobs, chunksize=1)
    if any(result != results[0] for result in results):
        raise SystemExit("the ranks differ")
    print(json.dumps(results[0], indent=1))
    if arguments.output:
        with arguments.output.open("a") as output:
            output.write(json.dumps(results[0]) + "\n")


if __name__ == "__main__":
    main()
