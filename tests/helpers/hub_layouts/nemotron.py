"""Nemotron: other names, separate experts, prediction heads and remote code."""

from collections.abc import Callable
from functools import partial

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
    norms,
    ones,
    random,
    seed,
)

EXPERTS, EXPERT, LATENT = 4, 32, 32
_UP, _DOWN = (EXPERT, HIDDEN), (HIDDEN, EXPERT)


def mixer(prefix: str) -> Tensors:
    heads, groups = 4, 2
    inner = heads * 16
    conv = inner + 2 * groups * 16
    return {
        prefix + "in_proj.weight": random(inner + conv + heads, HIDDEN),
        prefix + "conv1d.weight": random(conv, 1, 4, std=0.5),
        prefix + "conv1d.bias": random(conv),
        prefix + "out_proj.weight": random(HIDDEN, inner),
        **{prefix + name: random(heads) for name in ("A_log", "D", "dt_bias")},
        prefix + "norm.weight": ones(inner),
    }


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
    tensors = {"backbone.embeddings.weight": random(VOCABULARY, HIDDEN, std=1.0)}
    tensors |= norms("backbone.", "norm_f") | {"lm_head.weight": random(VOCABULARY, HIDDEN)}
    for layer, kind in enumerate(pattern):
        prefix = f"backbone.layers.{layer}."
        inner = prefix + "mixer."
        tensors |= norms(prefix, "norm")
        if kind == "M":
            tensors |= mixer(inner)
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


_NANO = "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"
_ULTRA = "nvidia--NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16"
LAYOUTS: dict[str, Callable[[], Layout]] = {
    "Nemotron-H-56B": partial(nemotron, "nvidia--Nemotron-H-56B-Base-8K", "M-M*M-"),
    "Nemotron-Nano": partial(nemotron, _NANO, "MEM*ME"),
    "Nemotron-Ultra": partial(nemotron, _ULTRA, "MEM*ME"),
}
