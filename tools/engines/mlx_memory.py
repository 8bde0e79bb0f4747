"""Measure by how much MLX-LM's process grows per sequence, with three sizes of state.

    python tools/engines/mlx_memory.py ENGINES TOKENIZER OUT.json [--sequences 24]

A random Qwen3.5 model with Qwen3-Next's heads, small elsewhere, is served whole, cut to 64x64, and
cut to 64x64 except for its first layer.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch
from check_uneven import PLUGIN
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

import statetrim as st
from statetrim.serving.capacity.compare import capacity, settings_for
from statetrim.serving.options import ServingOptions

FIELDS = {
    "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 8, "head_dim": 32,
    "num_attention_heads": 2, "num_key_value_heads": 1, "linear_conv_kernel_dim": 4,
    "linear_num_key_heads": 16, "linear_num_value_heads": 32,
    "linear_key_head_dim": 128, "linear_value_head_dim": 128,
}  # fmt: skip
STATES = {"original": "", "uniform": "64x64", "by layer": "0=128x128,others=64x64"}


def write_models(folder: Path, tokenizer_folder: Path) -> dict[str, st.Checkpoint]:
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    fields = FIELDS | {"vocab_size": len(tokenizer)}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen3_5_text", **fields))
    model.bfloat16().save_pretrained(folder / "original")
    tokenizer.save_pretrained(folder / "original")
    models = {"original": st.open(folder / "original")}
    for name, to in STATES.items():
        if to:
            plan = st.select(models["original"], "l1", to, value_method="readout_l1")
            models[name] = st.prune(models["original"], plan, folder / name, uneven="=" in to)
    for model in models.values():
        config = json.loads((model.path / "config.json").read_text())
        config["model_file"] = PLUGIN.name
        (model.path / "config.json").write_text(json.dumps(config))
        shutil.copy(PLUGIN, model.path)
    return models


def calculated(model: st.Checkpoint) -> int:
    """Bytes of a sequence as `statetrim inspect` counts them."""
    serving = ServingOptions(engine="mlx", memory_gib=1, context=8)
    fit = capacity(model, model.geometry, settings_for(model, serving), "mlx")
    return fit.state_bytes + fit.block_size * fit.token_bytes


def measure(python: Path, model: st.Checkpoint, sequences: int) -> dict[str, float]:
    """By how many bytes per sequence MLX-LM grows."""
    script = Path(__file__).with_name("in_mlx") / "batch_memory.py"
    command = [python, script, model.path, str(sequences)]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    grown: dict[str, float] = json.loads(printed.splitlines()[-1])
    return grown | {"calculated": calculated(model)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("engines", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--sequences", type=int, default=24)
    options = parser.parse_args()
    python = options.engines / "mlx" / "bin" / "python"
    with tempfile.TemporaryDirectory() as folder:
        models = write_models(Path(folder), options.tokenizer)
        results = {n: measure(python, m, options.sequences) for n, m in models.items()}
    options.output.write_text(
        json.dumps({"sequences": options.sequences} | results, indent=1) + "\n"
    )
    print(options.output.read_text())


if __name__ == "__main__":
    main()
