"""Time and memory of `statetrim prune` relative to `cp` + `sync` of the same files, in one run.

    python benchmarks/bench_prune.py DIRECTORY [--gigabytes 20] [--rounds 2] [--formats bf16 fp8]

Writes a synthetic checkpoint in the layout and width of Qwen3.5-27B (one layer per shard) below
DIRECTORY, which needs three times its size free, and removes it at the end. Prints Markdown.
Quantised formats have the projections in FP8 (blocks of 128x128) or NVFP4, as releases do.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from itertools import product
from math import prod
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


ELEMENT_BYTES = {"BF16": 2, "F32": 4, "F8_E4M3": 1, "U8": 1}
QUANTIZATION_CONFIGS = {
    "fp8": {"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e4m3"},
    "nvfp4": {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"},
}
Stored = dict[str, tuple[str, tuple[int, ...]]]
"""Name -> dtype and shape of a tensor as it is stored."""


def stored_tensors(layer: int, form: str) -> Stored:
    """What takes the place of a layer's weights in this format."""
    stored: Stored = {}
    for name, shape in tensors_of_layer(layer).items():
        if form == "bf16" or len(shape) != 2 or min(shape) < 128:
            stored[name] = ("BF16", shape)
            continue
        rows, columns = shape
        if form == "fp8":
            stored[name] = ("F8_E4M3", shape)
            stored[f"{name}_scale_inv"] = ("F32", (-(-rows // 128), -(-columns // 128)))
        else:
            stored[f"{name}_packed"] = ("U8", (rows, columns // 2))
            stored[f"{name}_scale"] = ("F8_E4M3", (rows, columns // 16))
            stored[f"{name}_global_scale"] = ("F32", (1,))
    return stored


def noise_for(dtype: str) -> bytes:
    """Bytes to repeat for a tensor: random numbers without infinity or NaN; scales are ones."""
    if dtype == "F32":
        return torch.ones(1 << 20).view(torch.uint8).numpy().tobytes()
    values = torch.randn(8 << 20)
    if dtype == "U8":
        return torch.randint(256, (8 << 20,), dtype=torch.uint8).numpy().tobytes()
    kind = torch.bfloat16 if dtype == "BF16" else torch.float8_e4m3fn
    return values.to(kind).view(torch.uint8).numpy().tobytes()


def write_checkpoint(directory: Path, gigabytes: float, form: str) -> int:
    """A checkpoint of random numbers in this format; returns its size."""
    directory.mkdir(parents=True)
    noise = {dtype: noise_for(dtype) for dtype in ELEMENT_BYTES}
    weight_map: dict[str, str] = {}
    total = layer = 0
    while total < gigabytes * 1e9:
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        start, file = 0, f"model-{layer:05d}.safetensors"
        sizes: list[tuple[str, int]] = []
        for name, (dtype, shape) in stored_tensors(layer, form).items():
            nbytes = ELEMENT_BYTES[dtype] * prod(shape)
            offsets = [start, start + nbytes]
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
            weight_map[name] = file
            sizes.append((dtype, nbytes))
            start += nbytes
        text = json.dumps(header).encode()
        with (directory / file).open("wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            for dtype, nbytes in sizes:
                block = noise[dtype]
                for written in range(0, nbytes, len(block)):
                    out.write(block[: min(len(block), nbytes - written)])
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
    if form in QUANTIZATION_CONFIGS:
        config["quantization_config"] = QUANTIZATION_CONFIGS[form]
    (directory / "config.json").write_text(json.dumps(config))
    os.sync()
    return total


SHAPES = {"bf16": "50%x100%", "fp8": "50%x50%", "nvfp4": "50%x50%"}
"""Of quantised formats values are cut too, so that weights are quantised again."""

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


def compare(root: Path, gigabytes: float, rounds: int, form: str) -> dict[str, float]:
    """Copy and prune in turn, each into a new directory; medians, and the median of the ratios."""
    source, copy, pruned, plan = (root / name for name in ("source", "copy", "pruned", "plan.json"))
    size = write_checkpoint(source, gigabytes, form)
    tool = (sys.executable, "-m", "statetrim")
    timed(*tool, "select", source, "--method", "rand", "--to", SHAPES[form], "-o", plan)
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
    formats = ("bf16", *QUANTIZATION_CONFIGS)
    parser.add_argument("--formats", nargs="+", choices=formats, default=["bf16"])
    options = parser.parse_args()
    root = options.directory / "bench-prune"
    print("| format | checkpoint | shards | cp + sync | prune + sync | ratio | peak memory |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for form, gigabytes in product(options.formats, (2.0, options.gigabytes)):
        row = compare(root, gigabytes, options.rounds, form)
        print(
            f"| {form} | {row['gigabytes']:.1f} GB | {row['shards']:.0f} | {row['cp']:.1f} s "
            f"| {row['prune']:.1f} s | {row['ratio']:.2f} | {row['peak']:.0f} MB |",
            flush=True,
        )
    root.rmdir()


if __name__ == "__main__":
    main()
