"""OLMo-Hybrid and the published fla models: separate projections and convolutions."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from .parts import (
    HIDDEN,
    MLP,
    VOCABULARY,
    Layout,
    Tensors,
    attention,
    matrices,
    mlp,
    norms,
    ones,
    random,
    seed,
)

_FLA: dict[str, Any] = {
    "attn": None, "attn_mode": "chunk", "bos_token_id": 1, "eos_token_id": 2, "fuse_norm": True,
    "fuse_cross_entropy": True, "hidden_act": "swish", "hidden_ratio": 4, "hidden_size": HIDDEN,
    "initializer_range": 0.02, "intermediate_size": None, "max_position_embeddings": 2048,
    "norm_eps": 1e-6, "num_hidden_layers": 2, "tie_word_embeddings": False, "use_cache": True,
    "torch_dtype": "bfloat16", "transformers_version": "4.45.0", "vocab_size": VOCABULARY,
}  # fmt: skip
_CONFIGS: dict[str, dict[str, Any]] = {
    "delta_net": {
        "architectures": ["DeltaNetForCausalLM"], "conv_size": 4, "expand_k": 1, "expand_v": 1,
        "norm_first": False, "num_heads": 4, "qk_activation": "silu", "qk_norm": "l2",
        "use_beta": True, "use_gate": False, "use_output_norm": True, "use_short_conv": True,
    },
    "gla": {
        "architectures": ["GLAForCausalLM"], "clamp_min": None, "conv_size": 4, "expand_k": 0.5,
        "expand_v": 1, "feature_map": None, "num_heads": 4, "num_kv_heads": None, "use_gk": True,
        "use_gv": False, "use_output_gate": True, "use_short_conv": False,
        "elementwise_affine": True,
    },
    "gated_deltanet": {
        "architectures": ["GatedDeltaNetForCausalLM"], "conv_size": 4, "expand_v": 2,
        "head_dim": 16, "num_heads": 3, "norm_first": False, "use_gate": True,
        "use_short_conv": True, "allow_neg_eigval": False,
    },
}  # fmt: skip


def head(embeddings: str) -> Tensors:
    return {
        f"model.{embeddings}.weight": random(VOCABULARY, HIDDEN, std=1.0),
        "model.norm.weight": ones(HIDDEN),
        "lm_head.weight": random(VOCABULARY, HIDDEN),
    }


def mixer(prefix: str, keys: int, values: int, head_width: int) -> Tensors:
    """Projections, convolutions and norm of a delta rule."""
    rows = {"q": keys, "k": keys, "v": values}
    tensors = {f"{prefix}{x}_proj.weight": random(n, HIDDEN) for x, n in rows.items()}
    tensors |= {f"{prefix}{x}_conv1d.weight": random(n, 1, 4, std=0.5) for x, n in rows.items()}
    tensors[prefix + "o_proj.weight"] = random(HIDDEN, values)
    return tensors | {prefix + "o_norm.weight": ones(head_width)}


def delta_net(prefix: str) -> Tensors:
    return mixer(prefix, 64, 64, 16) | matrices(prefix, b_proj=(4, HIDDEN))


def gated_deltanet(prefix: str) -> Tensors:
    gates = {"g_proj": (96, HIDDEN), "a_proj": (3, HIDDEN), "b_proj": (3, HIDDEN)}
    tensors = mixer(prefix, 48, 96, 32) | matrices(prefix, **gates)
    return tensors | {prefix + name: random(3) for name in ("A_log", "dt_bias", "D")}


def gla(prefix: str) -> Tensors:
    keys, square = (32, HIDDEN), (HIDDEN, HIDDEN)
    tensors = matrices(
        prefix, q_proj=keys, k_proj=keys, v_proj=square, g_proj=square, o_proj=square
    )  # fmt: skip
    return tensors | {
        prefix + "gk_proj.0.weight": random(16, HIDDEN),
        prefix + "gk_proj.1.weight": random(32, 16),
        prefix + "gk_proj.1.bias": random(32),
        prefix + "g_norm_swish_gate.weight": ones(16),
    }


_MIXERS = {"delta_net": delta_net, "gla": gla, "gated_deltanet": gated_deltanet}


def fla(kind: str) -> Layout:
    seed()
    tensors = head("embeddings")
    for layer in range(2):
        prefix = f"model.layers.{layer}."
        tensors |= norms(prefix, "attn_norm", "mlp_norm") | mlp(prefix + "mlp.", 256)
        tensors |= _MIXERS[kind](prefix + "attn.")
    return Layout(_FLA | _CONFIGS[kind] | {"model_type": kind}, tensors, 1, "model.safetensors")


def olmo_hybrid() -> Layout:
    seed()
    kinds = [*["linear_attention"] * 3, "full_attention"] * 2
    config: dict[str, Any] = {
        "architectures": ["OlmoHybridForCausalLM"], "attention_bias": False, "bos_token_id": None,
        "attention_dropout": 0.0, "dtype": "bfloat16", "eos_token_id": 0, "hidden_act": "silu",
        "hidden_size": HIDDEN, "initializer_range": 0.02, "intermediate_size": MLP,
        "layer_types": kinds, "linear_allow_neg_eigval": True, "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 12, "linear_num_key_heads": 4, "linear_num_value_heads": 4,
        "linear_value_head_dim": 24, "max_position_embeddings": 65536, "model_type": "olmo_hybrid",
        "num_attention_heads": 4, "num_hidden_layers": 8, "num_key_value_heads": 4,
        "pad_token_id": 0, "rms_norm_eps": 1e-6, "rope_parameters": None,
        "tie_word_embeddings": False, "transformers_version": "5.2.0", "use_cache": True,
        "vocab_size": VOCABULARY,
    }  # fmt: skip
    tensors = head("embed_tokens")
    for layer, kind in enumerate(kinds):
        prefix = f"model.layers.{layer}."
        tensors |= mlp(prefix + "mlp.") | norms(prefix, "post_attention_layernorm")
        if kind == "full_attention":
            tensors |= attention(prefix + "self_attn.", 4, 4)
            tensors |= norms(prefix, "post_feedforward_layernorm")
            tensors |= norms(prefix + "self_attn.", "q_norm", "k_norm")
            continue
        linear = prefix + "linear_attn."
        tensors |= norms(prefix, "input_layernorm") | mixer(linear, 48, 96, 24)
        gates = {"g_proj": (96, HIDDEN), "a_proj": (4, HIDDEN), "b_proj": (4, HIDDEN)}
        tensors |= matrices(linear, **gates)
        tensors |= {linear + n: random(4, dtype=torch.float32) for n in ("A_log", "dt_bias")}
    return Layout(config, tensors, 2)


LAYOUTS: dict[str, Callable[[], Layout]] = {
    "Olmo-Hybrid-7B": olmo_hybrid,
    **{f"fla-{kind}": partial(fla, kind) for kind in _MIXERS},
}
