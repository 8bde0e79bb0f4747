"""Make small checkpoints in the hub's layout for tests of engines: originals and cuts.

    just train-tiny qwen3_next TRAINED --text train.jsonl --tokenizer FOLDER \
        --set head_dim=128 --set num_layers=4 --set value_heads_per_key=2 --set steps=250 \
        --set longest_decay_step=0.005 --set recall_tokens=1024
    python tools/engines/make_models.py TRAINED OUT --text train.jsonl

TRAINED is Qwen3-Next with 2 key heads and 4 value heads of 128 x 128. Qwen3.5 is the same network
with q, k, v and z in other rows, so its checkpoint is made from the same weights. `wide` has
Qwen3-Next's 16 and 32 heads and random weights; only the size of its state matters.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

sys.modules["fla"] = sys.modules["causal_conv1d"] = None  # type: ignore[assignment]

import statetrim as st  # noqa: E402

WIDTH = 128
SHAPES = ((64, 128), (32, 128), (64, 64), (32, 32), (16, 16))
SQUARES = tuple((width, width) for width in (56, 48, 40, 32, 24, 20, 16, 12))
COPIED = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")


def hub_config(trained: Path) -> dict[str, object]:
    """The config with fields where the hub has them; transformers 5 saves some elsewhere."""
    config = json.loads((trained / "config.json").read_text())
    rope = config.pop("rope_parameters")
    config |= {name: rope[name] for name in ("rope_theta", "partial_rotary_factor")}
    config |= {"decoder_sparse_step": 1, "mlp_only_layers": [], "full_attention_interval": 4}
    config |= {"num_experts_per_tok": 0, "norm_topk_prob": True, "rope_scaling": None}
    return config


def with_experts(
    config: dict[str, object], tensors: dict[str, Tensor]
) -> tuple[dict[str, object], dict[str, Tensor]]:
    """An equivalent model with one expert per layer, a shared expert that adds zero, and its own
    lm_head: engines expect experts in every layer of a Qwen3-Next, and vLLM ignores
    `tie_word_embeddings` of this architecture and would serve an empty head."""
    hidden, width = int(str(config["hidden_size"])), int(str(config["intermediate_size"]))
    converted = {
        name.replace(".mlp.", ".mlp.experts.0."): tensor for name, tensor in tensors.items()
    }
    converted["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    for layer in range(int(str(config["num_hidden_layers"]))):
        mlp = f"model.layers.{layer}.mlp."
        converted |= {
            f"{mlp}gate.weight": torch.zeros(1, hidden),
            f"{mlp}shared_expert.gate_proj.weight": torch.zeros(16, hidden),
            f"{mlp}shared_expert.up_proj.weight": torch.zeros(16, hidden),
            f"{mlp}shared_expert.down_proj.weight": torch.zeros(hidden, 16),
            f"{mlp}shared_expert_gate.weight": torch.zeros(1, hidden),
        }
    fields = {"num_experts": 1, "num_experts_per_tok": 1, "moe_intermediate_size": width}
    fields |= {"tie_word_embeddings": False, "shared_expert_intermediate_size": 16}
    return config | fields, converted


def qwen3_5_tensors(tensors: dict[str, Tensor], config: dict[str, object]) -> dict[str, Tensor]:
    """Qwen3-Next's rows [q k v z] and [b a] of each key head, regrouped as Qwen3.5's tensors."""
    heads = int(str(config["linear_num_key_heads"]))
    group = int(str(config["linear_num_value_heads"])) // heads
    keys, values = (int(str(config[f"linear_{kind}_head_dim"])) for kind in ("key", "value"))
    converted = {}
    for name, tensor in tensors.items():
        by_head = (
            tensor.unflatten(0, (heads, -1))
            if name.endswith(("qkvz.weight", "ba.weight"))
            else tensor
        )
        if name.endswith("in_proj_qkvz.weight"):
            q, k, v, z = by_head.split([keys, keys, group * values, group * values], dim=1)
            joined = torch.cat([rows.flatten(0, 1) for rows in (q, k, v)])
            converted[name.replace("qkvz", "qkv")] = joined.contiguous()
            converted[name.replace("qkvz", "z")] = z.flatten(0, 1).contiguous()
        elif name.endswith("in_proj_ba.weight"):
            b, a = by_head.split([group, group], dim=1)
            converted[name.replace("_ba.", "_b.")] = b.flatten(0, 1).contiguous()
            converted[name.replace("_ba.", "_a.")] = a.flatten(0, 1).contiguous()
        else:
            converted[name] = tensor
    return converted


def write_checkpoint(
    folder: Path, config: dict[str, object], tensors: dict[str, Tensor], source: Path
) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    for name in COPIED:
        if (source / name).exists():
            shutil.copy(source / name, folder / name)
    return folder


def text_config(config: dict[str, object]) -> dict[str, object]:
    """The config of Qwen3.5's text model alone."""
    moe = ("num_experts", "moe", "shared_expert", "norm_topk", "decoder_sparse", "mlp_only")
    kept = {name: value for name, value in config.items() if not name.startswith(moe)}
    rope = {name: kept.pop(name) for name in ("rope_theta", "partial_rotary_factor")}
    kept.pop("rope_scaling", None)
    return kept | {
        "model_type": "qwen3_5_text",
        "architectures": ["Qwen3_5ForCausalLM"],
        "rope_parameters": {"rope_type": "default", **rope},
    }


def nested_config(text: dict[str, object]) -> dict[str, object]:
    """The config of Qwen3.5 as published, with a nested text_config."""
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "tie_word_embeddings": text["tie_word_embeddings"],
        "text_config": text,
        "vision_config": {"depth": 1, "hidden_size": 16, "num_heads": 2},
    }


def wide_model(text: dict[str, object]) -> tuple[dict[str, object], dict[str, Tensor]]:
    """Config and random weights with Qwen3-Next's heads, but small hidden size and vocabulary."""
    from transformers import AutoConfig, AutoModelForCausalLM

    heads = {"linear_num_key_heads": 16, "linear_num_value_heads": 32}
    softmax = {"num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256}
    config = text | heads | softmax
    torch.manual_seed(0)
    fields = {name: value for name, value in config.items() if name != "model_type"}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen3_5_text", **fields))
    tied = {"lm_head.weight"} if text["tie_word_embeddings"] else set()
    tensors = {name: t for name, t in model.state_dict().items() if name not in tied}
    return config, {
        name: tensor.to(torch.bfloat16).contiguous() for name, tensor in tensors.items()
    }


def write_cuts(model: Path, folder: Path, text: Path, shapes: Sequence[tuple[int, int]]) -> None:
    """Write a cut per shape (keys x values), by drrqr and readout_greedy; squares refitted too."""
    opened = st.open(model)
    statistics = st.calibrate(opened, text, tokens=8192, methods=["drrqr", "readout_greedy"])
    for keys, values in shapes:
        plan = st.select(
            opened,
            "drrqr,readout_greedy",
            f"{keys}x{values}",
            statistics=statistics,
        )
        out = folder / f"{model.name.removesuffix(f'-{WIDTH}')}-{keys}x{values}"
        small = st.prune(opened, plan, out)
        if keys == values:
            target = st.calibrate(small, text, original=opened, tokens=8192)
            st.refit(small, target, out=out.with_name(f"{out.name}-refitted"))


def write_half(model: Path) -> None:
    """Write a cut to half of both axes, by methods that need no calibration."""
    opened = st.open(model)
    plan = st.select(opened, "l1,readout_l1", to=f"{WIDTH // 2}x{WIDTH // 2}")
    st.prune(opened, plan, model.with_name(model.name.replace("-128", "-64x64")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("trained", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--text", type=Path, required=True, help="what the cuts are chosen on")
    parser.add_argument(
        "--squares", type=Path, help="a trained model of 64x64, cut to many squares"
    )
    arguments = parser.parse_args()
    trained, out, text = arguments.trained, arguments.out, arguments.text
    config, tensors = hub_config(trained), load_file(trained / "model.safetensors")
    qwen3_5 = qwen3_5_tensors(tensors, config)
    text_fields = text_config(config)
    nested_tensors = {
        name.replace("model.", "model.language_model.", 1): tensor
        for name, tensor in qwen3_5.items()
    }
    write_checkpoint(out / "qwen3_next-128", *with_experts(config, tensors), trained)
    write_checkpoint(out / "qwen3_5-128", nested_config(text_fields), nested_tensors, trained)
    write_checkpoint(out / "qwen3_5_text-128", text_fields, qwen3_5, trained)
    for name in ("qwen3_next", "qwen3_5", "qwen3_5_text"):
        write_cuts(out / f"{name}-{WIDTH}", out, text, SHAPES)
    if arguments.squares:
        shutil.copytree(arguments.squares, out / "hybrid")
        write_cuts(out / "hybrid", out, text, SQUARES)
    write_checkpoint(out / "wide-128", *wide_model(text_fields | {"dtype": "bfloat16"}), trained)
    write_half(out / "wide-128")
    print(*sorted(path.name for path in out.iterdir() if path.is_dir()))


if __name__ == "__main__":
    main()
