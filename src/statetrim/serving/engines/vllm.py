"""vLLM."""

from collections.abc import Mapping
from dataclasses import replace
from math import ceil, floor
from typing import Any

from ..capacity.arithmetic import (
    CacheModel,
    Fit,
    Settings,
    StateLayers,
    arrays_of_sequences,
    conv_key_heads,
    layer_bytes,
    layer_token_bytes,
    moved_bytes,
    softmax_layers,
)
from .engine import BFLOAT16_COST, PLUGIN_TYPES, Engine, Flag, dtype_field


def replay_bytes(group: StateLayers, model: CacheModel, settings: Settings) -> float:
    """Bytes of ReplaySSM's ring of 16 inputs in one Mamba-2 layer.

    model_executor/layers/mamba/mamba_utils.py, append_replayssm_ring. With
    speculation it is FlashInfer's, which also holds the tokens that are being verified.
    """
    ring = 16 + (1 + settings.speculative if settings.speculative > 0 else 0)
    keys = conv_key_heads(group, model, settings.devices) / 2 * group.keys
    inputs = group.heads * group.values + keys
    return ring * (inputs * settings.conv_bytes + group.heads * 4) / settings.devices


def vllm(model: CacheModel, settings: Settings) -> Fit:
    """One pool of equal blocks: a block holds one layer's state, padded, or as many tokens of keys
    and values as fit in its place, for each layer of a group. Without softmax layers there are no
    blocks.

    Block size: platforms/interface.py, _align_hybrid_block_size. Groups, blocks and concurrency:
    v1/core/kv_cache_planning.py. States of a request: v1/kv_cache_interface.py, MambaSpec. Layers
    are padded to the widest page, as in the default cache layout. With prefix caching Mamba-2 keeps
    one more state, and so does KDA if FlashKDA prefills, on Hopper and Blackwell:
    models/kimi_k3/nvidia/kda.py, resolve_kda_prefill_backend. FlashInfer does too, and its blocks
    are multiples of 64 tokens: layers/mamba/gdn/qwen_gdn_linear_attn.py.

    Prefixes: only whole blocks are found, and with drafts only if the token after the block is the
    same too: config/vllm.py, num_hash_lookahead_tokens. More requests than blocks are refused:
    config/compilation.py.
    """
    if model.softmax_layers == 0:
        fit = arrays_of_sequences(model, replace(settings, speculative=0))
        return replace(fit, shortest_prefix=0)
    taps = model.conv_width - 1 + settings.speculative
    page = (model.ple_inputs + settings.speculative) * model.ple_width * settings.conv_bytes
    linear = 0
    copies = 2 if model.shared_groups else 1
    softmax = softmax_layers(model, settings)
    fewest = softmax
    most = softmax
    for group in model.states:
        ring = replay_bytes(group, model, settings) if settings.replay else 0
        page = max(page, layer_bytes(group, model, settings, taps) + ring)
        linear += group.layers
        copies = 2 if model.bounded_gate and group.keys == 128 else copies
        if model.specs_by_shape:
            fewest = min(fewest, group.layers)
            most = max(most, group.layers)
    ple = model.ple_layers
    if not model.specs_by_shape:
        fewest = min(fewest, linear, ple if ple > 0 else linear)
        most = max(most, linear)
    size = most if most < 1.5 * fewest else fewest
    softmax_groups = ceil(softmax / size)
    linear_groups = ceil(linear / size)
    widest = max(ceil(linear / linear_groups), ceil(softmax / softmax_groups))
    if model.specs_by_shape:
        linear_groups = 0
        widest = size
        for group in model.states:
            linear_groups += ceil(group.layers / size)
    linear_groups += ceil(ple / size)
    token = layer_token_bytes(model, settings)
    alignment = max(settings.alignment, 128) if model.latent else settings.alignment
    if settings.flashinfer and settings.prefix_caching:
        alignment = max(alignment, 64)
        copies = 2
    block_size = alignment * ceil(page / (alignment * token))
    block = block_size * token * widest
    blocks = floor(settings.memory / block)
    drafts = 0 if settings.replay else settings.speculative
    cached = settings.prefix_caching and not (settings.replay and settings.speculative > 0)
    states = 1 + drafts + (copies if cached else 0)
    needed = softmax_groups * ceil(settings.context / block_size) + linear_groups * states
    return Fit(
        sequences=blocks / needed,
        states=states,
        state_bytes=linear_groups * block,
        token_bytes=token * softmax,
        block_size=block_size,
        blocks=blocks,
        requests=blocks,
        shortest_prefix=block_size + (1 if settings.speculative > 0 else 0) if cached else 0,
        block_bytes=(softmax_groups + linear_groups) * block,
        stored_bytes=linear_groups * block,
        host_bytes=0,
        transfer_bytes=moved_bytes(model, settings, model.conv_width - 1),
    )


def default_state_dtype(config: Mapping[str, Any], served: str) -> str:
    """The field of Qwen3.5 and Nemotron-H, KDA float32, and other models the dtype of the model:
    models/config.py."""
    if "linear_attn_config" in config:
        return "float32"
    if config.get("model_type") == "nemotron_h":
        return dtype_field(config, "mamba_ssm_cache_dtype", "float32")
    return dtype_field(config, "mamba_ssm_dtype", served)


ENGINE = Engine(
    key="vllm",
    name="vLLM",
    packages=("vllm",),
    version="0.33.0",
    command="vllm serve {model}",
    fit=vllm,
    kv_dtypes={"auto": 2.0, "fp8": 1.0},
    state_dtype_flag="--mamba-ssm-cache-dtype",
    requests_flag="--max-num-seqs",
    default_state_dtype=default_state_dtype,
    flags=(
        Flag("--mamba-ssm-cache-dtype bfloat16", {"state_bytes": 2}, BFLOAT16_COST,
             "config/cache.py"),
        Flag("--kv-cache-dtype fp8", {"kv_bytes": 1}, "not measured here", "config/cache.py"),
        Flag("--no-enable-prefix-caching", {"prefix_caching": False},
             "repeated prefixes are computed again", "v1/kv_cache_interface.py"),
        Flag("--use-replayssm", {"replay": True},
             "same outputs; with speculation it turns the prefix cache off", "config/vllm.py",
             min_drafts=1, mamba2=True),
        Flag("fewer draft tokens (1)", {"speculative": 1}, "slower decoding",
             "v1/kv_cache_interface.py", min_drafts=2),
    ),
    plugin_types=PLUGIN_TYPES,
    has_pages=True,
    driver="ask_vllm",
    dtype="bfloat16",
)  # fmt: skip
