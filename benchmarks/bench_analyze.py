"""Time of an analysis relative to a bare forward pass of the same tokens, in one run.

    python benchmarks/bench_analyze.py [--rounds 5]

Random weights in the shape of small models, one sequence of 2048 tokens, rounds interleaved.
Prints Markdown: the median time of analyze, forward pass included, over that of the forward pass
alone.
"""

import argparse
import logging
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

import statetrim as st
from statetrim import portable
from statetrim.analysis.analyze import CHUNK, _Tally
from statetrim.runtime.kernel_hooks import hook_kernels
from statetrim.runtime.live import LiveModel
from statetrim.runtime.loading import load_live
from statetrim.runtime.states import StateStorage

LENGTH = 2048
SHAPES: dict[str, dict[str, Any]] = {
    "delta_net, 4 layers, 4 heads of 64 x 64": {
        "model_type": "delta_net", "hidden_size": 256, "num_heads": 4, "num_hidden_layers": 4,
        "intermediate_size": 768, "vocab_size": 4096,
    },
    "gated_deltanet, 2 layers, 8 heads of 128 x 128": {
        "model_type": "gated_deltanet", "hidden_size": 1024, "num_heads": 8, "head_dim": 128,
        "expand_v": 1.0, "num_hidden_layers": 2, "vocab_size": 4096,
    },
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    logging.getLogger("transformers").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    print(
        "| model | forward | chunk ends | every 16th token | every token |\n|---|---|---|---|---|"
    )
    for name, shape in SHAPES.items():
        with tempfile.TemporaryDirectory() as directory:
            bench(name, build(shape, Path(directory)), rounds)


def build(shape: dict[str, Any], directory: Path) -> st.Checkpoint:
    from transformers import AutoConfig, AutoModelForCausalLM

    portable.register()
    torch.manual_seed(0)
    config = AutoConfig.for_model(**shape)
    AutoModelForCausalLM.from_config(config).save_pretrained(directory)
    return st.open(directory)


def bench(name: str, model: st.Checkpoint, rounds: int) -> None:
    live = load_live(model)
    ids = torch.randint(0, 4096, (1, LENGTH), generator=torch.Generator().manual_seed(0))
    passes: dict[int, Callable[[], None]] = {
        every: partial(analyze_pass, live, ids, every) for every in (0, CHUNK, 16)
    }
    times: dict[int, list[float]] = {every: [] for every in passes}
    for number in range(rounds + 1):  # the first warms up
        for every, run_pass in passes.items():
            seconds = timed(run_pass)
            if number:
                times[every].append(seconds)
    median = {every: statistics.median(seconds_list) for every, seconds_list in times.items()}
    median[1] = timed(lambda: analyze_pass(live, ids, 1))  # once: it is slow
    cells = [f"{median[every] / median[0]:.2f}x" for every in (CHUNK, 16, 1)]
    print(f"| {name} | {median[0]:.2f} s | {' | '.join(cells)} |", flush=True)


@torch.inference_mode()
def analyze_pass(live: LiveModel, ids: torch.Tensor, every: int) -> None:
    """The forward pass; unless `every` is 0, with all that analyze computes."""
    if not every:
        live.hidden_states(ids)
        return
    model, shape = live.checkpoint, live.checkpoint.geometry
    tallies = {
        layer: _Tally(shape, model.family, LENGTH, every, 128, StateStorage())
        for layer in shape.layers
    }
    with hook_kernels(live, lambda call: tallies[call.layer].add(call)):
        live.hidden_states(ids)
    for layer, tally in tallies.items():
        tally.result(model.filters(layer))


def timed(run_pass: Callable[[], None]) -> float:
    start = time.perf_counter()
    run_pass()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
