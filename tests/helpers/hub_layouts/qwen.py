"""Qwen3-Next and Qwen3.5: prediction heads, a vision tower, separate or stacked experts."""

from collections.abc import Callable
from functools import partial

import torch

from .parts import HIDDEN, VOCABULARY, Layout, Tensors, hub_config, mlp, ones, random, seed

LAYERS, EXPERTS, EXPERT, TOWER = 8, 8, 16, 32
_SHAPE = {
    "hidden_size": HIDDEN, "vocab_size": VOCABULARY, "num_hidden_layers": LAYERS, "head_dim": 16,
    "num_attention_heads": 4, "num_key_value_heads": 2, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    "eos_token_id": 0,
}  # fmt: skip
_EXPERTS = {
    "num_experts": EXPERTS, "num_experts_per_tok": 2, "moe_intermediate_size": EXPERT,
    "shared_expert_intermediate_size": EXPERT,
}  # fmt: skip


def linear_attention(prefix: str, fused: bool) -> Tensors:
    keys, values, heads = 2 * 16, 4 * 16, 4
    shapes = (
        {"in_proj_qkvz": 2 * keys + 2 * values, "in_proj_ba": 2 * heads}
        if fused
        else {"in_proj_qkv": 2 * keys + values, "in_proj_z": values, "in_proj_b": heads,
              "in_proj_a": heads}
    )  # fmt: skip
    dtype = torch.bfloat16 if fused else torch.float32
    return {
        **{f"{prefix}{name}.weight": random(rows, HIDDEN) for name, rows in shapes.items()},
        prefix + "conv1d.weight": random(2 * keys + values, 1, 4, std=0.5),
        prefix + "A_log": random(heads, dtype=dtype),
        prefix + "dt_bias": random(heads),
        prefix + "norm.weight": ones(16, dtype),
        prefix + "out_proj.weight": random(HIDDEN, values),
    }


def softmax(prefix: str) -> Tensors:
    """Softmax attention with an output gate in q_proj."""
    shapes = {"q_proj": (128, HIDDEN), "k_proj": (32, HIDDEN), "v_proj": (32, HIDDEN),
              "o_proj": (HIDDEN, 64)}  # fmt: skip
    tensors = {f"{prefix}{name}.weight": random(*shape) for name, shape in shapes.items()}
    return tensors | {f"{prefix}{x}_norm.weight": random(16) for x in "qk"}


def experts(prefix: str, stacked: bool) -> Tensors:
    tensors = {prefix + "gate.weight": random(EXPERTS, HIDDEN)}
    if stacked:
        tensors[prefix + "experts.gate_up_proj"] = random(EXPERTS, 2 * EXPERT, HIDDEN)
        tensors[prefix + "experts.down_proj"] = random(EXPERTS, HIDDEN, EXPERT)
    else:
        for expert in range(EXPERTS):
            tensors |= mlp(f"{prefix}experts.{expert}.", EXPERT)
    tensors |= mlp(prefix + "shared_expert.", EXPERT)
    return tensors | {prefix + "shared_expert_gate.weight": random(1, HIDDEN)}


def prediction_head(moe: bool) -> Tensors:
    names = ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "layers.0.input_layernorm",
             "layers.0.post_attention_layernorm")  # fmt: skip
    tensors = {f"mtp.{name}.weight": random(HIDDEN) for name in names}
    tensors |= {"mtp.fc.weight": random(HIDDEN, 2 * HIDDEN)} | softmax("mtp.layers.0.self_attn.")
    inner = "mtp.layers.0.mlp."
    return tensors | (experts(inner, stacked=False) if moe else mlp(inner))


def vision_tower() -> Tensors:
    shapes: dict[str, tuple[int, ...]] = {
        "patch_embed.proj": (TOWER, 3, 2, 4, 4), "merger.norm": (TOWER,),
        "merger.linear_fc1": (4 * TOWER, 4 * TOWER), "merger.linear_fc2": (HIDDEN, 4 * TOWER),
    }  # fmt: skip
    for block in range(2):
        shapes |= {
            f"blocks.{block}.attn.qkv": (3 * TOWER, TOWER),
            f"blocks.{block}.attn.proj": (TOWER, TOWER),
            f"blocks.{block}.mlp.linear_fc1": (48, TOWER),
            f"blocks.{block}.mlp.linear_fc2": (TOWER, 48),
            f"blocks.{block}.norm1": (TOWER,),
            f"blocks.{block}.norm2": (TOWER,),
        }
    tensors = {"model.visual.pos_embed.weight": random(16, TOWER)}
    for name, shape in shapes.items():
        tensors[f"model.visual.{name}.weight"] = random(*shape)
        tensors[f"model.visual.{name}.bias"] = random(shape[0])
    return tensors


def decoder(root: str, fused: bool, moe: bool, stacked: bool) -> Tensors:
    tensors = {root + "embed_tokens.weight": random(VOCABULARY, HIDDEN, std=1.0)}
    for layer in range(LAYERS):
        prefix = f"{root}layers.{layer}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}{name}.weight"] = random(HIDDEN)
        tensors |= (
            softmax(prefix + "self_attn.")
            if layer % 4 == 3
            else linear_attention(prefix + "linear_attn.", fused)
        )
        tensors |= experts(prefix + "mlp.", stacked) if moe else mlp(prefix + "mlp.")
    return tensors | {root + "norm.weight": random(HIDDEN)}


def qwen3_next() -> Layout:
    seed()
    config = hub_config("Qwen--Qwen3-Next-80B-A3B") | _SHAPE | _EXPERTS
    config |= {"intermediate_size": 96, "bos_token_id": 1}
    tensors = decoder("model.", fused=True, moe=True, stacked=False)
    tensors |= {"lm_head.weight": random(VOCABULARY, HIDDEN)} | prediction_head(moe=True)
    return Layout(config, tensors, shards=5)


def qwen3_5(hub_name: str, moe: bool) -> Layout:
    seed()
    config = hub_config(hub_name)
    text = config["text_config"]
    text |= _SHAPE | (_EXPERTS if moe else {"intermediate_size": 96})
    text["layer_types"] = text["layer_types"][:LAYERS]
    text.get("rope_parameters", {})["mrope_section"] = [1, 1, 0]
    config["vision_config"] |= {
        "depth": 2, "hidden_size": TOWER, "intermediate_size": 48, "num_heads": 2,
        "num_position_embeddings": 16, "out_hidden_size": HIDDEN, "patch_size": 4,
    }  # fmt: skip
    tensors = decoder("model.language_model.", fused=False, moe=moe, stacked=True)
    if not config.get("tie_word_embeddings"):
        tensors["lm_head.weight"] = random(VOCABULARY, HIDDEN)
    tensors |= vision_tower() | prediction_head(moe)
    return Layout(config, tensors, 4, "model.safetensors-{:05d}-of-{:05d}.safetensors")


LAYOUTS: dict[str, Callable[[], Layout]] = {
    "Qwen3-Next": qwen3_next,
    "Qwen3.5-27B": partial(qwen3_5, "Qwen--Qwen3.5-27B", False),
    "Qwen3.5-35B-A3B": partial(qwen3_5, "Qwen--Qwen3.5-35B-A3B", True),
}
