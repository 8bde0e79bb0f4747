"""Which layers of a recorded config cache what, read without statetrim."""

from __future__ import annotations

from itertools import cycle
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


def head_cuts(config: dict[str, Any]) -> list[dict[str, int]]:
    """Config fields with fewer value heads for each key head, and with half of the key heads."""
    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    fewer = [{"linear_num_value_heads": count} for count in range(keys, values, keys)]
    return [*fewer, {"linear_num_key_heads": keys // 2, "linear_num_value_heads": values // 2}]


def head_cases(
    models: dict[str, dict[str, Any]], cases: list[dict[str, Any]], count: int
) -> list[dict[str, Any]]:
    """The settings of the first `count` of `cases` whose model has key heads, with head cuts that
    the devices can share."""
    cut_cases: list[dict[str, Any]] = []
    cuts = {
        name: cycle(head_cuts(config))
        for name, config in models.items()
        if "linear_num_key_heads" in config
    }
    for case in cases:
        if case["model"] in cuts and len(cut_cases) < count:
            cut = next(cuts[case["model"]])
            key_heads = (models[case["model"]] | cut)["linear_num_key_heads"]
            if key_heads % case["devices"] == 0:
                cut_cases.append(case | {"cut": cut})
    return cut_cases
