"""`calibrate --layerwise`: memory and time on a synthetic model larger than the memory limit.

    python benchmarks/bench_layerwise.py DIRECTORY TOKENIZER TEXT [--gigabytes 6 --limit 1.95]

Writes a random bf16 checkpoint in the Qwen3.5 layout below DIRECTORY, calibrates it with the
tokenizer folder and text file given, in a process that may allocate no more than the limit (GB),
and counts what that process reads. Then, for a model that fits in memory, compares its calibration
from disk with its bare forward pass, in CPU seconds. Prints Markdown, removes the checkpoints.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

import statetrim as st
from statetrim.runtime.corpus import Corpus
from statetrim.runtime.loading import hide_gpu_kernels, load_live
from statetrim.storage.text import Sequences

WIDTH = {"hidden_size": 2560, "intermediate_size": 9728}
HEADS = {"num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 256}
LINEAR = {"linear_num_key_heads": 16, "linear_num_value_heads": 32}
METHODS = ("drrqr", "s_wanda")
FITS, FEW = 0.5, 4096  # GB, and tokens, of the model that is timed


def write_checkpoint(directory: Path, tokenizer: Path, gigabytes: float) -> float:
    """Write a checkpoint of at least `gigabytes`, one layer per shard; returns its size in GB."""
    vocabulary = len(json.loads((tokenizer / "tokenizer.json").read_text())["model"]["vocab"])
    settings = {**WIDTH, **HEADS, **LINEAR, "vocab_size": vocabulary, "dtype": "bfloat16"}
    layers, shapes = 0, dict[str, torch.Size]()
    while sum(shape.numel() for shape in shapes.values()) * 2 / 1e9 < gigabytes:
        layers += 4
        config = AutoConfig.for_model("qwen3_5_text", num_hidden_layers=layers, **settings)
        with hide_gpu_kernels(), torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    directory.mkdir(parents=True)
    config.save_pretrained(directory)
    for file in tokenizer.iterdir():
        shutil.copy(file, directory)
    groups: dict[str, list[str]] = {}
    for name in shapes:
        parts = name.split(".")
        groups.setdefault(parts[2] if parts[1] == "layers" else "rest", []).append(name)
    weight_map: dict[str, str] = {}
    size = 0
    for group, names in groups.items():
        shard = f"model-{group}.safetensors"
        tensors = {n: torch.randn(shapes[n]).mul_(0.02).to(torch.bfloat16) for n in names}
        save_file(tensors, directory / shard, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(names, shard)
        size += sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return size / 1e9


def bytes_read() -> int:
    """Bytes this process has read with read(); mapped files do not count, and none are mapped."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("rchar")).split()[1])


def calibrate_within_limit(model: Path, text: Path, tokens: int, limit: float) -> None:
    """Calibrate within `limit` GB and print time, bytes and memory; for a process of its own."""
    max_bytes = int(limit * 1e9)
    resource.setrlimit(resource.RLIMIT_DATA, (max_bytes, max_bytes))
    opened = st.open(model)
    opened.digest  # noqa: B018  (reads all files, to know the model again)
    before, start = bytes_read(), time.perf_counter()
    arguments: Any = {"methods": METHODS, "tokens": tokens, "recall": 0.0, "progress": False}
    st.calibrate(opened, text, layerwise=True, out=model.parent / "sums.safetensors", **arguments)
    cost = {
        "seconds": time.perf_counter() - start,
        "read": (bytes_read() - before) / 1e9,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
    }
    print(json.dumps(cost))


def compare_with_bare(
    model: Path, text: Path, tokens: int, rounds: int
) -> tuple[float, float, float]:
    """CPU seconds of the bare model and of a calibration from disk on the same batches, medians;
    and the median of the ratios."""
    opened = st.open(model)
    opened.digest  # noqa: B018
    data: Sequences = Corpus(text, opened).read(tokens=tokens, length=512)
    live = load_live(opened)
    bare, layerwise = [], []
    for number in range(rounds + 1):  # the first is not counted
        start = time.process_time()
        with torch.inference_mode():
            for batch in data.batches(8):
                live.hidden_states(batch)
        bare.append(time.process_time() - start)
        start = time.process_time()
        st.calibrate(opened, data, methods=METHODS, layerwise=True, progress=False)
        layerwise.append(time.process_time() - start)
        print(
            f"round {number}: {bare[-1]:.1f} s, {layerwise[-1]:.1f} s", file=sys.stderr, flush=True
        )
    ratios = [w / b for w, b in zip(layerwise[1:], bare[1:], strict=True)]
    return statistics.median(bare[1:]), statistics.median(layerwise[1:]), statistics.median(ratios)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--gigabytes", type=float, default=6, help="0 leaves the first part out")
    parser.add_argument("--limit", type=float, default=1.95)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        calibrate_within_limit(options.directory, options.text, options.tokens, options.limit)
        return
    root = options.directory / "bench-layerwise"
    if options.gigabytes:
        within_limit(root / "large" / "model", options)
    small = write_checkpoint(root / "model", options.tokenizer, FITS)
    bare, layerwise, ratio = compare_with_bare(root / "model", options.text, FEW, options.rounds)
    print("| weights | tokens | bare forward | calibrated from disk | ratio |")
    print("|---:|---:|---:|---:|---:|")
    print(f"| {small:.2f} GB | {FEW:,} | {bare:.1f} s | {layerwise:.1f} s | {ratio:.2f} |")
    shutil.rmtree(root)


def within_limit(model: Path, options: argparse.Namespace) -> None:
    """Write a model, calibrate it in a process of its own, print a table, remove it."""
    gigabytes = write_checkpoint(model, options.tokenizer, options.gigabytes)
    paths = [model, options.tokenizer, options.text]
    more = ["--limit", str(options.limit), "--tokens", str(options.tokens), "--child"]
    command = [sys.executable, __file__, *map(str, paths), *more]
    process = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    cost = json.loads(process.stdout.splitlines()[-1])
    print("| weights | tokens | may allocate | peak memory | read | time |")
    print("|---:|---:|---:|---:|---:|---:|")
    print(
        f"| {gigabytes:.2f} GB | {options.tokens:,} | {options.limit:g} GB | {cost['peak']:.2f} GB "
        f"| {cost['read']:.2f} GB | {cost['seconds']:.0f} s |\n",
        flush=True,
    )
    shutil.rmtree(model.parent)


if __name__ == "__main__":
    main()
