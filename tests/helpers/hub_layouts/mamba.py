"""Mamba-2 and its hybrids, as their authors published them."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from .parts import (
    HIDDEN,
    MLP,
    VOCABULARY,
    Layout,
    Tensors,
    attention,
    hub_config,
    matrices,
    mlp,
    norms,
    ones,
    random,
    seed,
)

DATA = Path(__file__).parents[2] / "data" / "hub_layouts"
EXPERTS, EXPERT, LATENT = 4, 32, 32
_UP, _DOWN = (EXPERT, HIDDEN), (HIDDEN, EXPERT)


def own_config(name: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text())
    return config


def mixer(prefix: str, heads: int = 8, groups: int = 1, norm: bool = True) -> Tensors:
    inner = heads * 16
    conv = inner + 2 * groups * 16
    tensors = {
        prefix + "in_proj.weight": random(inner + conv + heads, HIDDEN),
        prefix + "conv1d.weight": random(conv, 1, 4, std=0.5),
        prefix + "conv1d.bias": random(conv),
        prefix + "out_proj.weight": random(HIDDEN, inner),
        **{prefix + name: random(heads) for name in ("A_log", "D", "dt_bias")},
    }
    return tensors | ({prefix + "norm.weight": ones(inner)} if norm else {})


def embeddings_and_head(root: str, embeddings: str, norm: str, head: bool = True) -> Tensors:
    tensors = {f"{root}.{embeddings}.weight": random(VOCABULARY, HIDDEN, std=1.0)}
    tensors |= norms(f"{root}.", norm)
    return tensors | ({"lm_head.weight": random(VOCABULARY, HIDDEN)} if head else {})


def nemotron(hub_name: str, pattern: str) -> Layout:
    seed()
    config = hub_config(hub_name)
    kinds = {"M": "mamba", "-": "mlp", "*": "attention", "E": "moe"}
    config |= {
        "hidden_size": HIDDEN, "vocab_size": VOCABULARY, "mamba_num_heads": 4, "n_groups": 2,
        "mamba_head_dim": 16, "ssm_state_size": 16, "num_attention_heads": 4, "head_dim": 16,
        "num_key_value_heads": 2, "intermediate_size": MLP, "num_hidden_layers": len(pattern),
        "bos_token_id": 1, "eos_token_id": 0,
    }  # fmt: skip
    small = {
        "hybrid_override_pattern": pattern, "layers_block_type": [kinds[k] for k in pattern],
        "attention_head_dim": 16, "n_routed_experts": EXPERTS, "num_experts_per_tok": 2,
        "moe_intermediate_size": EXPERT, "moe_shared_expert_intermediate_size": EXPERT,
        "moe_latent_size": LATENT,
    }  # fmt: skip
    config |= {name: value for name, value in small.items() if config.get(name)}
    latent = bool(config.get("moe_latent_size"))
    tensors = embeddings_and_head("backbone", "embeddings", "norm_f")
    for layer, kind in enumerate(pattern):
        prefix = f"backbone.layers.{layer}."
        inner = prefix + "mixer."
        tensors |= norms(prefix, "norm")
        if kind == "M":
            tensors |= mixer(inner, heads=4, groups=2)
        elif kind == "*":
            tensors |= attention(inner)
        elif kind == "-":
            tensors |= matrices(inner, up_proj=(MLP, HIDDEN), down_proj=(HIDDEN, MLP))
        else:
            tensors |= _experts(inner, latent)
            tensors |= matrices(inner + "shared_experts.", up_proj=_UP, down_proj=_DOWN)
    if latent:
        tensors |= _prediction_head()
    return Layout(config, tensors, 3, remote_code=True)


def _experts(prefix: str, latent: bool) -> Tensors:
    width = LATENT if latent else HIDDEN
    tensors = {
        prefix + "gate.weight": random(EXPERTS, HIDDEN),
        prefix + "gate.e_score_correction_bias": random(EXPERTS, dtype=torch.float32),
    }
    if latent:
        tensors |= matrices(
            prefix, fc1_latent_proj=(LATENT, HIDDEN), fc2_latent_proj=(HIDDEN, LATENT)
        )
    for expert in range(EXPERTS):
        shapes = {"up_proj": (EXPERT, width), "down_proj": (width, EXPERT)}
        tensors |= matrices(f"{prefix}experts.{expert}.", **shapes)
    return tensors


def _prediction_head() -> Tensors:
    tensors = matrices("mtp.layers.0.", eh_proj=(HIDDEN, 2 * HIDDEN))
    tensors |= norms("mtp.layers.0.", "enorm", "hnorm", "norm") | attention("mtp.layers.0.mixer.")
    tensors |= norms("mtp.layers.1.", "norm", "final_layernorm")
    return tensors | _experts("mtp.layers.1.mixer.", latent=True)


def codestral() -> Layout:
    seed()
    tensors = embeddings_and_head("backbone", "embeddings", "norm_f")
    for layer in range(3):
        prefix = f"backbone.layers.{layer}."
        tensors |= norms(prefix, "norm") | mixer(prefix + "mixer.", groups=2)
    return Layout(own_config("Mamba-Codestral"), tensors, 3)


def granite(moe: bool) -> Layout:
    seed()
    config = own_config("Granite-4.0-H-" + ("Small" if moe else "Micro"))
    tensors = embeddings_and_head("model", "embed_tokens", "norm", head=False)
    for layer, kind in enumerate(config["layer_types"]):
        prefix = f"model.layers.{layer}."
        tensors |= norms(prefix, "input_layernorm", "post_attention_layernorm")
        tensors |= mixer(prefix + "mamba.") if kind == "mamba" else attention(prefix + "self_attn.")
        tensors |= matrices(
            prefix + "shared_mlp.", input_linear=(64, HIDDEN), output_linear=(HIDDEN, 32)
        )
        if moe:
            sparse = prefix + "block_sparse_moe."
            tensors[sparse + "input_linear.weight"] = random(EXPERTS, 32, HIDDEN)
            tensors[sparse + "output_linear.weight"] = random(EXPERTS, HIDDEN, 16)
            tensors[sparse + "router.layer.weight"] = random(EXPERTS, HIDDEN)
    return Layout(config, tensors, 2)


def falcon() -> Layout:
    """Softmax attention and a state in every layer, and no norm after the recurrence."""
    seed()
    tensors = embeddings_and_head("model", "embed_tokens", "final_layernorm")
    for layer in range(3):
        prefix = f"model.layers.{layer}."
        tensors |= norms(prefix, "input_layernorm", "pre_ff_layernorm")
        tensors |= attention(prefix + "self_attn.") | mlp(prefix + "feed_forward.")
        tensors |= mixer(prefix + "mamba.", heads=6, norm=False)
    return Layout(own_config("Falcon-H1"), tensors, 1, "model.safetensors")


def bamba() -> Layout:
    seed()
    config = own_config("Bamba-9B")
    tensors = embeddings_and_head("model", "embed_tokens", "final_layernorm")
    for layer in range(3):
        prefix = f"model.layers.{layer}."
        tensors |= norms(prefix, "input_layernorm", "pre_ff_layernorm")
        tensors |= mlp(prefix + "feed_forward.")
        softmax = layer in config["attn_layer_indices"]
        tensors |= attention(prefix + "self_attn.") if softmax else mixer(prefix + "mamba.")
    return Layout(config, tensors, 2)


def zamba2() -> Layout:
    """Several layers share one attention block, which is stored once."""
    seed()
    config = own_config("Zamba2")
    tensors = embeddings_and_head("model", "embed_tokens", "final_layernorm", head=False)
    for layer, kind in enumerate(config["layers_block_type"]):
        prefix = f"model.layers.{layer}."
        if kind == "mamba":
            tensors |= norms(prefix, "input_layernorm") | mixer(prefix + "mamba.")
            continue
        tensors |= matrices(prefix, linear=(HIDDEN, HIDDEN))
        tensors |= norms(prefix + "mamba_decoder.", "input_layernorm")
        tensors |= mixer(prefix + "mamba_decoder.mamba.")
        if kind not in config["layers_block_type"][:layer]:
            tensors |= _shared_block(prefix + "shared_transformer.")
    return Layout(config, tensors, 2)


def _shared_block(prefix: str) -> Tensors:
    tensors = norms(prefix, "pre_ff_layernorm")
    tensors[prefix + "input_layernorm.weight"] = ones(2 * HIDDEN)
    for projection in "qkv":
        tensors[f"{prefix}self_attn.{projection}_proj.weight"] = random(128, 2 * HIDDEN)
    tensors[prefix + "self_attn.o_proj.weight"] = random(HIDDEN, 128)
    inner = prefix + "feed_forward."
    tensors |= matrices(inner, gate_up_proj=(192, HIDDEN), down_proj=(HIDDEN, 96))
    for adapter in range(2):
        tensors[f"{inner}gate_up_proj_adapter_list.{adapter}.0.weight"] = random(8, HIDDEN)
        tensors[f"{inner}gate_up_proj_adapter_list.{adapter}.1.weight"] = random(192, 8)
    return tensors


_NANO = "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"
_ULTRA = "nvidia--NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16"
LAYOUTS: dict[str, Callable[[], Layout]] = {
    "Nemotron-H-56B": partial(nemotron, "nvidia--Nemotron-H-56B-Base-8K", "M-M*M-"),
    "Nemotron-Nano": partial(nemotron, _NANO, "MEM*ME"),
    "Nemotron-Ultra": partial(nemotron, _ULTRA, "MEM*ME"),
    "Mamba-Codestral": codestral,
    "Granite-4.0-H-Small": partial(granite, True),
    "Granite-4.0-H-Micro": partial(granite, False),
    "Falcon-H1": falcon,
    "Bamba-9B": bamba,
    "Zamba2": zamba2,
}
