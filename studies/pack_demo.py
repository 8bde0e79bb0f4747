"""Write a trained demo model as it lies in the package: 16 bits, in the layout of the hub.

python studies/pack_demo.py TRAINED src/statetrim/pipelines/demo/model
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

COPIED = ("tokenizer.json", "tokenizer_config.json", "training.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("trained", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    trained, out = arguments.trained, arguments.out
    out.mkdir(parents=True, exist_ok=True)
    weights = {}
    for name, tensor in load_file(trained / "model.safetensors").items():
        weights[name] = tensor.to(torch.bfloat16)
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    config = nested_config(json.loads((trained / "config.json").read_text()))
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    for name in COPIED:
        shutil.copy(trained / name, out / name)


def nested_config(text: dict[str, object]) -> dict[str, object]:
    """The config as published checkpoints have it, which is the one that MLX-LM reads."""
    first_softmax_layer = list(text["layer_types"]).index("full_attention")  # type: ignore[call-overload]
    text = {name: value for name, value in text.items() if name != "architectures"}
    text |= {"dtype": "bfloat16", "full_attention_interval": first_softmax_layer + 1}
    text["eos_token_id"] = int(str(text["vocab_size"])) - 1  # of demo_tokenizer.py
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "dtype": "bfloat16",
        "tie_word_embeddings": True,
        "text_config": text,
        "vision_config": {"depth": 1, "hidden_size": 16, "num_heads": 2},
    }


if __name__ == "__main__":
    main()
