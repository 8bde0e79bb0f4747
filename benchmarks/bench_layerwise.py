"""Peak memory of `statetrim calibrate --layerwise` on a synthetic model larger than its budget.

    python benchmarks/bench_layerwise.py DIRECTORY TOKENIZER TEXT [--gigabytes 6]

Writes a random bf16 checkpoint in the Qwen3.5 layout below DIRECTORY, calibrates it with the
tokenizer folder and text file given, prints Markdown, and removes the checkpoint.
"""

import argparse
import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from bench_prune import timed

WIDTH = {"hidden_size": 2560, "intermediate_size": 9728}
HEADS = {"num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 256}
LINEAR = {"linear_num_key_heads": 16, "linear_num_value_heads": 32}


def write_checkpoint(directory: Path, tokenizer: Path, gigabytes: float) -> float:
    """One layer a shard; returns the size in GB."""
    vocabulary = len(json.loads((tokenizer / "tokenizer.json").read_text())["model"]["vocab"])
    settings = {**WIDTH, **HEADS, **LINEAR, "vocab_size": vocabulary, "dtype": "bfloat16"}
    total, layers = 0.0, 4
    with torch.device("meta"):  # how large is a model of four layers?
        config = AutoConfig.for_model("qwen3_5_text", num_hidden_layers=layers, **settings)
        probe = AutoModelForCausalLM.from_config(config)
        total = sum(p.numel() for p in probe.parameters()) * 2 / 1e9
    layers = 4 * round(gigabytes / total + 0.5)
    config = AutoConfig.for_model("qwen3_5_text", num_hidden_layers=layers, **settings)
    with torch.device("meta"):
        shapes = {
            k: v.shape for k, v in AutoModelForCausalLM.from_config(config).state_dict().items()
        }
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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--gigabytes", type=float, default=6)
    options = parser.parse_args()
    root = options.directory / "bench-layerwise"
    gigabytes = write_checkpoint(root / "model", options.tokenizer, options.gigabytes)
    out = root / "statistics.safetensors"
    command = [sys.executable, "-m", "statetrim", "calibrate", root / "model", "--layerwise"]
    command += ["--text", options.text, "--tokens", "1k", "--for", "drrqr,s_wanda", "-o", out]
    seconds, megabytes = timed(*command)
    peak = megabytes / 1e3
    print("| weights | tokens | peak memory | time |\n|---:|---:|---:|---:|")
    print(f"| {gigabytes:.1f} GB | 1,024 | {peak:.2f} GB | {seconds:.0f} s |")
    shutil.rmtree(root)


if __name__ == "__main__":
    main()
