"""Time of calibration relative to the bare model, its peak memory, and the time of selection.

    python benchmarks/bench_calibrate.py [--rounds 7]

Models of realistic shape with random weights, built in a temporary directory. Bare and calibrating
passes over the same tokens alternate in one process of one thread; the best of the rounds counts,
in CPU seconds, which depend least on other load. Prints Markdown.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import statetrim as st
from statetrim import portable
from statetrim.calibration import calibrate as calibration
from statetrim.calibration.sums import Sums
from statetrim.methods import find_method
from statetrim.progress import ignore_progress
from statetrim.runtime.loading import hide_gpu_kernels, load_live
from statetrim.runtime.logits import LogitReader
from statetrim.storage.text import Sequences

VOCABULARY, LENGTH, BATCH, BATCHES = 8192, 512, 2, 1
MEMORY_LENGTH, FEW, MANY = 128, 8, 128  # 4 and 64 batches: the first ones alone hold no sums yet
FORWARD = ("drrqr", "s_wanda", "energy", "product")
COMMON = {"vocab_size": VOCABULARY, "hidden_size": 1024, "num_hidden_layers": 4}
CONFIGS: dict[str, dict[str, Any]] = {
    "gated_deltanet": {**COMMON, "num_heads": 4, "head_dim": 128, "expand_v": 2.0},
    "qwen3_5_text": {
        **COMMON,
        "intermediate_size": 3072,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 8,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
    },
}


def build(model_type: str, directory: Path) -> Path:
    from transformers import AutoConfig, AutoModelForCausalLM

    portable.register()
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **CONFIGS[model_type])
    with hide_gpu_kernels():
        AutoModelForCausalLM.from_config(config).save_pretrained(directory)
    return directory


def random_sequences(count: int, length: int) -> Sequences:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(VOCABULARY, (count, length), generator=generator, dtype=torch.int32)
    return Sequences(ids, {"text": "random ids", "count": count})


def cpu_seconds(work: Callable[[], None]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def ratio(directory: Path, methods: tuple[str, ...], rounds: int) -> tuple[float, float]:
    """Best CPU seconds of the bare passes and of the calibrating ones."""
    live = load_live(directory)
    statistics = calibration._needed_statistics(methods, layerwise=False)
    data = random_sequences(BATCH * BATCHES, LENGTH)
    batches: list[Tensor] = data.batches(BATCH)
    backward = "grad" in methods
    if backward:
        calibration._enable_projection_gradients(live)
        reader = LogitReader(live)
    sums = Sums(live.checkpoint, statistics)

    def bare() -> None:
        for batch in batches:
            if backward:
                calibration._backward_loss(reader, batch, None)
                live.module.zero_grad(set_to_none=True)
            else:
                with torch.inference_mode():
                    live.hidden_states(batch)

    def calibrating() -> None:
        text = {"text": sums}, {"text": batches}, {"text": data}
        calibration._run_batches([live], *text, ignore_progress)

    for warm_up in (bare, calibrating):
        warm_up()
    times = [(cpu_seconds(bare), cpu_seconds(calibrating)) for _ in range(rounds)]
    return min(t[0] for t in times), min(t[1] for t in times)


def peak_memory(directory: Path, count: int) -> float:
    """Peak memory in MB of a process that calibrates `count` sequences for every method."""
    command = [sys.executable, __file__, "--calibrate", directory, "--sequences", count]
    result = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True)
    return float(result.stdout.splitlines()[-1])


def own_peak() -> float:
    """Peak memory of this process in MB; ru_maxrss of a child would start at its parent's size."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e6


def selection_seconds(layers: int = 45, heads: int = 16, channels: int = 128) -> float:
    """DRRQR of half the channels, from Grams of correlated activations after SiLU."""
    generator = torch.Generator().manual_seed(0)
    kwargs: dict[str, Any] = {"generator": generator, "dtype": torch.float64}
    evidence = []
    for _ in range(layers):
        mixed = torch.randn(heads, 1024, 64, **kwargs) @ torch.randn(heads, 64, channels, **kwargs)
        rows = torch.nn.functional.silu(mixed + torch.randn(heads, 1024, channels, **kwargs))
        gram = rows.mT @ rows
        sums = st.LayerStatistics(1024, {"query_gram": gram, "key_gram": gram})
        evidence.append(
            st.Evidence(rows[:, :, :0], rows[:, :, :0], generator=generator, statistics=sums)
        )
    select = find_method("drrqr").select
    start = time.perf_counter()
    for layer in evidence:
        select(layer, channels // 2)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calibrate", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--sequences", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.calibrate:
        data = random_sequences(options.sequences, MEMORY_LENGTH)
        every = (*FORWARD, "grad")
        st.calibrate(st.open(options.calibrate), data, methods=every, batch_size=BATCH)
        print(own_peak())
        return
    print("| model | pass | bare | calibrating | ratio |")
    print("|---|---|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as root:
        for model_type in CONFIGS:
            directory = build(model_type, Path(root) / model_type)
            for name, methods in (
                ("forward, `drrqr`", ("drrqr",)),
                ("forward, all four", FORWARD),
                ("forward + backward, `grad`", ("grad",)),
                ("forward + backward, all five", (*FORWARD, "grad")),
            ):
                bare, calibrating = ratio(directory, methods, options.rounds)
                cells = f"{bare:.2f} s | {calibrating:.2f} s | {calibrating / bare:.3f}"
                print(f"| `{model_type}` | {name} | {cells} |", flush=True)
        print("\n| model | tokens | peak memory |\n|---|---:|---:|")
        for model_type in CONFIGS:
            for count in (FEW, MANY):
                peak = peak_memory(Path(root) / model_type, count)
                print(f"| `{model_type}` | {count * MEMORY_LENGTH:,} | {peak:.0f} MB |", flush=True)
    print(f"\nSelection, DRRQR, 720 heads of 128 channels: {selection_seconds():.1f} s")


if __name__ == "__main__":
    main()
