"""SGLang."""

from collections.abc import Mapping
from math import floor
from typing import Any

from ..capacity.arithmetic import (
    CacheModel,
    Fit,
    Settings,
    layer_token_bytes,
    moved_bytes,
    softmax_layers,
    state_bytes,
)
from .engine import BFLOAT16_COST, Engine, Flag, dtype_field


def sglang(model: CacheModel, settings: Settings) -> Fit:
    """What fits in SGLang's two pools: state slots, several to a request, and tokens of KV cache.

    mem_cache/kv_cache_configurator.py, _handle_max_mamba_cache, resolve_max_num_reqs, and
    _calculate_mamba_ratio with overlap scheduling and the extra_buffer strategy;
    model_executor/pool_configurator.py. With speculation at most 48 requests run unless
    --max-running-requests says otherwise (arg_groups/speculative_hook.py), and each keeps the state
    of every draft; ReplaySSM keeps their inputs instead.

    Prefixes, read at commit cce0a12 of 2026-08-23: prefill stores states at multiples of the chunk,
    managers/schedule_batch.py, _mamba_radix_cache_v2_req_prepare_for_extend, and server_args.py,
    mamba_cache_chunk_size.
    """
    taps = model.conv_width - 1
    state = state_bytes(model, settings, taps)
    cell = layer_token_bytes(model, settings) * softmax_layers(model, settings)
    default_slots = 5 if settings.prefix_caching else 1
    per_request = settings.slots if settings.slots > 0 else default_slots
    drafts = 0 if settings.speculative == 0 else settings.speculative + 1
    running = 48 if drafts > 0 else 4096
    ring = 0.0
    if settings.replay and drafts > 0:
        ring = sglang_ring_bytes(model, settings) * (running + 1)
        drafts = 0
    memory = settings.memory
    if not settings.prefix_caching and running < 4096:
        slots = running
    elif settings.state_ratio > 0:
        budget = memory * settings.state_ratio / (1 + settings.state_ratio)
        slots = floor((budget - ring - state * (1 + drafts)) / (state * (1 + drafts / per_request)))
    else:
        each = state * (per_request + drafts) + settings.context * cell
        slots = per_request * floor((memory - ring - state * (1 + drafts)) / each)
    slots = max(slots, 0)
    requests = min(running, slots // per_request)
    rest = memory - ring - (slots + 1) * state - (requests + 1) * drafts * state
    tokens = floor(max(rest, 0) / cell) if cell > 0 else 0
    fitting = floor(tokens / settings.context) if cell > 0 else requests
    return Fit(
        sequences=min(requests, fitting),
        states=per_request + drafts,
        state_bytes=state,
        token_bytes=cell,
        block_size=1,
        blocks=slots,
        requests=requests,
        shortest_prefix=model.chunk if settings.prefix_caching else 0,
        block_bytes=state + model.chunk * cell,
        stored_bytes=state,
        host_bytes=0,
        transfer_bytes=moved_bytes(model, settings, taps),
    )


def sglang_ring_bytes(model: CacheModel, settings: Settings) -> float:
    """Bytes of the inputs that ReplaySSM keeps of a request with Gated DeltaNet layers.

    configs/mamba_utils.py, replayssm_ring_bytes_per_req, at the default
    --linear-replayssm-cache-len of 16: values and keys in two parts each, and the gates.
    """
    total = 0.0
    for group in model.states:
        inputs = group.heads * group.values + group.conv_key_heads / 2 * group.keys
        parts = 2 if settings.conv_bytes < 4 else 1
        total += group.layers * 16 * (parts * inputs * settings.conv_bytes + group.heads * 4)
    return total / settings.devices


def default_state_dtype(config: Mapping[str, Any], served: str) -> str:
    """The config's field, else float32: configs/mamba_utils.py."""
    return dtype_field(config, "mamba_ssm_dtype", "float32")


ENGINE = Engine(
    key="sglang",
    name="SGLang",
    packages=("sglang",),
    version="0.5.23",
    command="python -m sglang.launch_server --model-path {model}",
    fit=sglang,
    kv_dtypes={"auto": 2.0, "fp8": 1.0},
    state_dtype_flag="--mamba-ssm-dtype",
    requests_flag="--max-running-requests",
    default_state_dtype=default_state_dtype,
    flags=(
        Flag("--mamba-ssm-dtype bfloat16", {"state_bytes": 2}, BFLOAT16_COST,
             "configs/mamba_utils.py"),
        Flag("--kv-cache-dtype fp8_e4m3", {"kv_bytes": 1}, "not measured here",
             "mem_cache/kv_cache_dtype.py"),
        Flag("--mamba-full-memory-ratio, the best for this context", {"state_ratio": 0},
             "none; the prefix cache has less room", "kv_cache_configurator.py"),
        Flag("--mamba-radix-cache-strategy extra_buffer_lazy", {"slots": 4},
             "none known", "mem_cache/allocation_sizing.py"),
        Flag("--mamba-radix-cache-strategy no_buffer", {"slots": 3},
             "no overlap of scheduling and computing", "arg_groups/overrides.py"),
        Flag("--enable-linear-replayssm-spec", {"replay": True},
             "same outputs; decoding 1.87 to 1.96x as fast by its authors (#28451)",
             "kv_cache_configurator.py", min_drafts=1, mamba2=False),
        Flag("--enable-int8-mamba-checkpoint", {},
             "twice as many cached prefixes, not more requests; lost nothing: results/snapshots.md",
             "mem_cache/mamba_checkpoint_pool.py"),
    ),
)  # fmt: skip
