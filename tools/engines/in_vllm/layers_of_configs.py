"""Which layers of a recorded config cache what, read without statetrim."""

from __future__ import annotations

from typing import Any


def layer_kinds(config: dict[str, Any]) -> list[str]:
    """ "state", "softmax", "both" or "none" for every decoder layer, by the config's own lists."""
    state, softmax = ("linear_attention", "mamba", "M"), ("attention", "*")
    if config["model_type"] == "falcon_h1":
        return ["both"] * config["num_hidden_layers"]
    if config["model_type"] == "kimi_linear":
        counted_from_1 = config["linear_attn_config"]["kda_layers"]
        return [
            "state" if i + 1 in counted_from_1 else "softmax"
            for i in range(config["num_hidden_layers"])
        ]
    for name in ("layer_types", "layers_block_type", "hybrid_override_pattern"):
        if config.get(name):
            kinds = []
            for entry in config[name]:
                is_softmax = entry in softmax or entry in ("full_attention", "indexed_attention")
                kinds.append("state" if entry in state else "softmax" if is_softmax else "none")
            return kinds
    interval = config["full_attention_interval"]
    return [
        "state" if (i + 1) % interval else "softmax" for i in range(config["num_hidden_layers"])
    ]


def draft_layers(config: dict[str, Any]) -> int:
    """Softmax layers of the MTP head, as vLLM's MTP models build them."""
    pattern = config.get("mtp_hybrid_override_pattern") or config.get("mtp_layers_block_type")
    if pattern:
        steps = config.get("num_nextn_predict_layers", 1)
        return steps * sum(entry in ("*", "attention") for entry in pattern)
    return config.get("mtp_num_hidden_layers", 0)
