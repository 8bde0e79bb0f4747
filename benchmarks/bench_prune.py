"""Time and memory of `statetrim prune` relative to `cp` + `sync` of the same files, in one run.

    python benchmarks/bench_prune.py DIRECTORY [--gigabytes 20] [--rounds 2]

Writes a synthetic checkpoint in the layout and width of Qwen3.5-27B (one layer per shard) below
DIRECTORY, which needs three times its size free, and removes it at the end. Prints Markdown.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import median

import torch

HIDDEN, INTERMEDIATE = 5120, 17408
KEY_HEADS, VALUE_HEADS, WIDTH = 16, 48, 128
ATTENTION_HEADS, KV_HEADS, ATTENTION_WIDTH = 24, 4, 256
CONV = (2 * KEY_HEADS + VALUE_HEADS) * WIDTH
LINEAR = {
    "in_proj_qkv.weight": (CONV, HIDDEN),
    "in_proj_z.weight": (VALUE_HEADS * WIDTH, HIDDEN),
    "in_proj_a.weight": (VALUE_HEADS, HIDDEN),
    "in_proj_b.weight": (VALUE_HEADS, HIDDEN),
    "conv1d.weight": (CONV, 1, 4),
    "A_log": (VALUE_HEADS,),
    "dt_bias": (VALUE_HEADS,),
    "norm.weight": (WIDTH,),
    "out_proj.weight": (HIDDEN, VALUE_HEADS * WIDTH),
}
SOFTMAX = {
    "q_proj.weight": (2 * ATTENTION_HEADS * ATTENTION_WIDTH, HIDDEN),
    "k_proj.weight": (KV_HEADS * ATTENTION_WIDTH, HIDDEN),
    "v_proj.weight": (KV_HEADS * ATTENTION_WIDTH, HIDDEN),
    "o_proj.weight": (HIDDEN, ATTENTION_HEADS * ATTENTION_WIDTH),
}
MLP = {
    "gate_proj.weight": (INTERMEDIATE, HIDDEN),
    "up_proj.weight": (INTERMEDIATE, HIDDEN),
    "down_proj.weight": (HIDDEN, INTERMEDIATE),
}


def tensors_of_layer(layer: int) -> dict[str, tuple[int, ...]]:
    mixer, shapes = ("self_attn", SOFTMAX) if layer % 4 == 3 else ("linear_attn", LINEAR)
    prefix = f"model.layers.{layer}"
    named = {f"{prefix}.{mixer}.{name}": shape for name, shape in shapes.items()}
    return named | {f"{prefix}.mlp.{name}": shape for name, shape in MLP.items()}


def write_checkpoint(directory: Path, gigabytes: float) -> int:
    """A bf16 checkpoint of random numbers; returns its size."""
    directory.mkdir(parents=True)
    noise = torch.randn(8 << 20).bfloat16().view(torch.uint8).numpy().tobytes()
    weight_map: dict[str, str] = {}
    total = layer = 0
    while total < gigabytes * 1e9:
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        start, file = 0, f"model-{layer:05d}.safetensors"
        for name, shape in tensors_of_layer(layer).items():
            nbytes = 2
            for size in shape:
                nbytes *= size
            offsets = [start, start + nbytes]
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": offsets}
            weight_map[name] = file
            start += nbytes
        text = json.dumps(header).encode()
        with (directory / file).open("wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            for written in range(0, start, len(noise)):
                out.write(noise[: min(len(noise), start - written)])
        total, layer = total + start, layer + 1
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    config = {
        "model_type": "qwen3_5_text",
        "num_hidden_layers": layer,
        "hidden_size": HIDDEN,
        "linear_num_key_heads": KEY_HEADS,
        "linear_num_value_heads": VALUE_HEADS,
        "linear_key_head_dim": WIDTH,
        "linear_value_head_dim": WIDTH,
        "layer_types": [
            "full_attention" if i % 4 == 3 else "linear_attention" for i in range(layer)
        ],
    }
    (directory / "config.json").write_text(json.dumps(config))
    os.sync()
    return total


# The peak memory of a process includes that of its parent at fork, so the parent must be small.
LAUNCH = """
import os, subprocess, sys, time
start = time.perf_counter()
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(process.pid, 0)
os.sync()
print(time.perf_counter() - start, usage.ru_maxrss * 1024 / 1e6)
sys.exit(status != 0)
"""


def timed(*command: str | Path) -> tuple[float, float]:
    """Seconds until the result is on the disk, and the command's peak memory in MB."""
    launch = [sys.executable, "-c", LAUNCH, *map(str, command)]
    process = subprocess.run(launch, check=True, stdout=subprocess.PIPE, text=True)
    seconds, peak = process.stdout.split()
    return float(seconds), float(peak)


def compare(root: Path, gigabytes: float, rounds: int) -> dict[str, float]:
    """Copy and prune in turn, each into a new directory; medians, and the median of the ratios."""
    source, copy, pruned, plan = (root / name for name in ("source", "copy", "pruned", "plan.json"))
    size = write_checkpoint(source, gigabytes)
    tool = (sys.executable, "-m", "statetrim")
    timed(*tool, "select", source, "--method", "rand", "--to", "50%x100%", "-o", plan)
    copies, prunes, peaks = [], [], []
    for _ in range(rounds):
        copies.append(timed("cp", "-r", source, copy)[0])
        shutil.rmtree(copy)
        seconds, peak = timed(*tool, "prune", source, plan, "-o", pruned)
        prunes.append(seconds)
        print(f"round: cp {copies[-1]:.1f} s, prune {seconds:.1f} s", file=sys.stderr, flush=True)
        peaks.append(peak)
        shutil.rmtree(pruned)
    shards = len(list(source.glob("*.safetensors")))
    shutil.rmtree(source)
    plan.unlink()
    return {
        "gigabytes": size / 1e9,
        "shards": shards,
        "cp": median(copies),
        "prune": median(prunes),
        "ratio": median(p / c for p, c in zip(prunes, copies, strict=True)),
        "peak": max(peaks),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--gigabytes", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    root = options.directory / "bench-prune"
    print("| checkpoint | shards | cp + sync | prune + sync | ratio | peak memory |")
    print("|---:|---:|---:|---:|---:|---:|")
    for gigabytes in (2.0, options.gigabytes):
        row = compare(root, gigabytes, options.rounds)
        print(
            f"| {row['gigabytes']:.1f} GB | {row['shards']:.0f} | {row['cp']:.1f} s "
            f"| {row['prune']:.1f} s | {row['ratio']:.2f} | {row['peak']:.0f} MB |",
            flush=True,
        )
    root.rmdir()


if __name__ == "__main__":
    main()
