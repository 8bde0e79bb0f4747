"""A Mamba-2 checkpoint of mamba_ssm, such as state-spaces/mamba2-130m, as transformers reads it.

As published its config has no model type, its weights are pickled, and it has no tokenizer. Tensors
have the names and order of transformers' own class, except for the embeddings.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from statetrim.storage.hub import HubModel

_TOKENIZER = "EleutherAI/gpt-neox-20b"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


def stock_config(original: Mapping[str, Any]) -> dict[str, Any] | None:
    """The config for transformers; None if `original` is no Mamba-2 of mamba_ssm."""
    sizes = original.get("ssm_cfg")
    if not isinstance(sizes, dict) or sizes.get("layer") != "Mamba2" or original["attn_layer_idx"]:
        return None
    hidden, multiple = original["d_model"], original["pad_vocab_size_multiple"]
    head_dim, expand = sizes.get("headdim", 64), sizes.get("expand", 2)
    return {
        "model_type": "mamba2", "architectures": ["Mamba2ForCausalLM"], "hidden_size": hidden,
        "num_hidden_layers": original["n_layer"], "head_dim": head_dim, "expand": expand,
        "num_heads": expand * hidden // head_dim, "state_size": sizes.get("d_state", 128),
        "n_groups": sizes.get("ngroups", 1), "conv_kernel": sizes.get("d_conv", 4),
        "vocab_size": -(-original["vocab_size"] // multiple) * multiple,
        "tie_word_embeddings": original["tie_embeddings"], "bos_token_id": 0, "eos_token_id": 0,
        "pad_token_id": 0, "residual_in_fp32": original["residual_in_fp32"],
    }  # fmt: skip


def stock_model(model: str, out: Path, *, weights: bool) -> str:
    """`model`, or `out`, with a conversion of it if mamba_ssm wrote it: without `weights` only the
    config, which is enough for an estimate."""
    hub = None if Path(model).exists() else HubModel.parse(model)
    path = hub.download_config() if hub else Path(model) / "config.json"
    config = stock_config(json.loads(path.read_text())) if path.is_file() else None
    if config is None or (out / "model.safetensors").exists():
        return model if config is None else str(out)
    partial = out.with_name(f"{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    (partial / "config.json").write_text(json.dumps(config, indent=1))
    if weights:
        _convert_weights(path.parent, hub, partial)
    shutil.rmtree(out, ignore_errors=True)
    os.replace(partial, out)
    return str(out if weights else out / "config.json")


def _convert_weights(source: Path, hub: HubModel | None, out: Path) -> None:
    from huggingface_hub import hf_hub_download

    file = source / "pytorch_model.bin"
    if hub is not None:
        file = Path(hf_hub_download(hub.repo, file.name, revision=hub.revision))
    tensors = torch.load(file, map_location="cpu", weights_only=True)
    renamed = {name.replace("embedding.", "embeddings."): x for name, x in tensors.items()}
    renamed.pop("lm_head.weight", None)  # tied to the embeddings
    save_file({name: x.contiguous() for name, x in renamed.items()}, out / "model.safetensors")
    for name in TOKENIZER_FILES:
        local = source / name
        shutil.copyfile(local if local.exists() else hf_hub_download(_TOKENIZER, name), out / name)
