"""What a model's softmax layers keep of every token, from its config alone."""

from dataclasses import dataclass

from ..families.contract import MOST_CHANNELS, MOST_HEADS, MOST_LAYERS, Config, count, layer_kinds
from ..geometry import Geometry


@dataclass(frozen=True)
class KeyValues:
    """`layers` softmax layers, each with `numel` numbers a token (keys and values together)."""

    layers: int
    numel: int


NONE = KeyValues(0, 0)

_KEY_VALUE_HEADS = {  # where the config is silent
    "qwen3_next": 2,
    "qwen3_5_text": 4,
    "qwen3_5_moe_text": 2,
    "qwen4_exp_text": 2,
    "bamba": 8,
    "falcon_h1": 8,
    "nemotron_h": 8,
}
_HEAD_DIM = {
    "qwen3_next": 256,
    "qwen3_5_text": 256,
    "qwen3_5_moe_text": 256,
    "qwen4_exp_text": 256,
    "nemotron_h": 128,
}
_PURE = ("mamba2", "delta_net", "gated_deltanet", "kda", "gated_deltaproduct", "comba", "gla")
_KNOWN = {*_KEY_VALUE_HEADS, "olmo_hybrid", "granitemoehybrid", "zamba2", *_PURE}


def key_values(config: Config, geometry: Geometry) -> KeyValues | None:
    """None where it is not known: latent attention, windows, model types of other libraries."""
    nested = config.get("text_config")
    model_type = str(config.get("model_type"))
    if isinstance(nested, dict):
        config, model_type = nested, f"{model_type.removesuffix('_text')}_text"
    if model_type not in _KNOWN or config.get("attn") is not None:
        return None
    if model_type in _PURE:
        return NONE
    layers = _softmax_layers(config, model_type, geometry)
    return None if layers is None else KeyValues(layers, _numel(config, model_type))


def _softmax_layers(config: Config, model_type: str, geometry: Geometry) -> int | None:
    total: int | None = count(config, "num_hidden_layers", default=0, most=MOST_LAYERS) or None
    if model_type == "falcon_h1":
        return total  # both kinds of attention in every layer
    if model_type == "nemotron_h":
        kinds = layer_kinds(config, "layers_block_type") or layer_kinds(config, "layer_types")
        pattern = config.get("hybrid_override_pattern")
        kinds = kinds or (list(pattern) if isinstance(pattern, str) else None)
        softmax = ("attention", "full_attention", "*")
        return None if kinds is None else sum(kind in softmax for kind in kinds)
    if model_type == "zamba2":
        kinds = layer_kinds(config, "layers_block_type")
        return None if kinds is None else kinds.count("hybrid")
    kinds = layer_kinds(config, "layer_types") or layer_kinds(config, "layers_block_type")
    total = len(kinds) if kinds else total
    if total is None and model_type == "olmo_hybrid":
        total = 32
    return None if total is None else total - len(geometry.layers)


def _numel(config: Config, model_type: str) -> int:
    heads = count(config, "num_attention_heads", default=32, most=MOST_HEADS)
    shared = count(
        config,
        "num_key_value_heads",
        default=_KEY_VALUE_HEADS.get(model_type, heads),
        most=MOST_HEADS,
    )
    hidden = count(config, "hidden_size", default=4096)
    # Zamba-2's shared attention reads the hidden state beside the embedding: twice the width.
    default = _HEAD_DIM.get(model_type, max(1, hidden // heads))
    name = "head_dim"
    if model_type == "zamba2":
        name, default = "attention_head_dim", max(1, 2 * hidden // heads)
    width = count(config, name, default=default, most=MOST_CHANNELS)
    indexer = count(config, "indexer_head_dim", default=0, most=MOST_CHANNELS)  # Qwen4-Exp's
    return 2 * shared * width + indexer
