"""How many sequences fit, by each engine's own arithmetic: one function per engine.

Each function follows the files named in its docstring, and the engines' own code checks it
(`just capacity-grid`). The calculator of the documentation site runs this module, translated by
`tools/write_calculator.py`, so it keeps to numbers, tuples, loops and conditions.
"""

from dataclasses import dataclass, replace
from math import ceil, floor


@dataclass(frozen=True)
class StateLayers:
    """Linear layers of one shape, as an engine registers them, before tensor parallelism.

    A layer that is stored in parts counts as several layers with fewer heads each.
    """

    layers: int
    heads: int  # states in a layer
    keys: int
    values: int
    conv_key_heads: int  # the convolution has conv_key_heads x keys ...
    conv_value_heads: int  # ... + conv_value_heads x values channels


@dataclass(frozen=True)
class CacheModel:
    """What a model caches for a sequence."""

    states: tuple[StateLayers, ...]
    conv_width: int
    softmax_layers: int
    kv_heads: int  # 1 for MLA, whose latent vector every device stores
    kv_numel: int  # numbers that one head of one softmax layer caches per token
    latent: bool = False  # MLA
    shared_groups: bool = False  # Mamba-2: devices beyond the number of groups copy them
    checkpoint_states: int = 0  # vLLM: further states of a request with prefix caching
    draft_layers: int = 0  # softmax layers of the MTP head, cached with speculation
    ple_layers: int = 0  # Qwen4-Exp: layers with a PLE convolution, which every device stores
    ple_inputs: int = 0  # that it keeps
    ple_width: int = 0  # of an input
    specs_by_shape: bool = False  # vLLM: layers of different shapes are in different groups


@dataclass(frozen=True)
class Settings:
    """How the model is served. Zero means the engine's default where it has one."""

    memory: int  # bytes for the caches of one device, after weights and activations
    context: int  # tokens of a sequence
    state_bytes: float = 4.0  # of one number
    conv_bytes: float = 2.0
    kv_bytes: float = 2.0
    speculative: int = 0  # draft tokens
    prefix_caching: bool = True
    devices: int = 1  # tensor parallelism
    replay: bool = False  # ReplaySSM: recompute drafts instead of storing their states
    alignment: int = 16  # vLLM: tokens of a kernel block; 128 on CPUs
    slots: int = 0  # SGLang: states of a running request
    state_ratio: float = 0.9  # SGLang: --mamba-full-memory-ratio; 0: the best for this context
    checkpoints: int = 32  # llama.cpp: --ctx-checkpoints
    coded_share: float = 0.0  # of a state's float32 bytes in a coded copy; 0: copied as it is


@dataclass(frozen=True)
class Fit:
    """What fits on one device of those that share the model."""

    sequences: float  # vLLM reports it unrounded
    states: float  # of a running request
    state_bytes: float  # of one state, all linear layers, as it is stored
    token_bytes: float  # of one token, all softmax layers
    block_size: int  # tokens that are allocated at once
    blocks: int  # vLLM: blocks; SGLang: state slots; elsewhere 0
    stored_bytes: float  # of one state in the prefix cache
    host_bytes: float  # states that a sequence keeps in host memory by default
    transfer_bytes: float  # a sequence that moves to another server


def conv_channels(group: StateLayers, model: CacheModel, devices: int) -> float:
    """Channels of a layer's convolution on one device."""
    key_heads = group.conv_key_heads
    if model.shared_groups and (key_heads // 2) % devices != 0:
        key_heads = 2 * devices
    return (key_heads * group.keys + group.conv_value_heads * group.values) / devices


def layer_bytes(group: StateLayers, model: CacheModel, settings: Settings, taps: int) -> float:
    """Bytes of state and convolution of one layer on one device; the convolution keeps `taps`
    inputs."""
    heads = group.heads / settings.devices
    state = heads * group.keys * group.values * settings.state_bytes
    return state + conv_channels(group, model, settings.devices) * taps * settings.conv_bytes


def state_bytes(model: CacheModel, settings: Settings, taps: int) -> float:
    """Bytes of one state over all layers on one device, unpadded."""
    total = model.ple_layers * model.ple_inputs * model.ple_width * settings.conv_bytes
    for group in model.states:
        total += group.layers * layer_bytes(group, model, settings, taps)
    return total


def copy_bytes(model: CacheModel, settings: Settings, taps: int) -> float:
    """Bytes of a copy of one state outside of the pool; coded, its convolution takes 8 bits."""
    if settings.coded_share == 0:
        return state_bytes(model, settings, taps)
    coded = replace(settings, state_bytes=4 * settings.coded_share, conv_bytes=1.0)
    return state_bytes(model, coded, taps)


def layer_token_bytes(model: CacheModel, settings: Settings) -> float:
    """Bytes of keys and values of one token in one softmax layer on one device."""
    return max(1, model.kv_heads // settings.devices) * model.kv_numel * settings.kv_bytes


def softmax_layers(model: CacheModel, settings: Settings) -> int:
    """Softmax layers that cache keys and values, with those of the MTP head if it is used."""
    return model.softmax_layers + (model.draft_layers if settings.speculative > 0 else 0)


def moved_bytes(model: CacheModel, settings: Settings, taps: int) -> float:
    """Bytes of a sequence without padding: its state and the keys and values of its tokens."""
    tokens = settings.context * softmax_layers(model, settings)
    return copy_bytes(model, settings, taps) + tokens * layer_token_bytes(model, settings)


def replay_bytes(group: StateLayers, settings: Settings) -> float:
    """Bytes of ReplaySSM's ring of 16 inputs in one Mamba-2 layer.

    vLLM 0.32.0: model_executor/layers/mamba/mamba_utils.py, append_replayssm_ring. With
    speculation it is FlashInfer's, which also holds the tokens that are being verified.
    """
    ring = 16 + (1 + settings.speculative if settings.speculative > 0 else 0)
    inputs = group.heads * group.values + group.conv_key_heads / 2 * group.keys
    return ring * (inputs * settings.conv_bytes + group.heads * 4) / settings.devices


def vllm(model: CacheModel, settings: Settings) -> Fit:
    """vLLM 0.32.0. One pool of equal blocks: a block holds one layer's state, padded, or as many
    tokens of keys and values as fit in its place, for each layer of a group.

    Block size: platforms/interface.py, _align_hybrid_block_size. Groups, blocks and concurrency:
    v1/core/kv_cache_utils.py. States of a request: v1/kv_cache_interface.py, MambaSpec. All layers
    are padded to the widest page, as in the default cache layout.
    """
    taps = model.conv_width - 1 + settings.speculative
    page = (model.ple_inputs + settings.speculative) * model.ple_width * settings.conv_bytes
    linear = 0
    softmax = softmax_layers(model, settings)
    fewest = softmax
    most = softmax
    for group in model.states:
        ring = replay_bytes(group, settings) if settings.replay else 0
        page = max(page, layer_bytes(group, model, settings, taps) + ring)
        linear += group.layers
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
    block_size = alignment * ceil(page / (alignment * token))
    block = block_size * token * widest
    blocks = floor(settings.memory / block)
    drafts = 0 if settings.replay else settings.speculative
    cached = settings.prefix_caching and not (settings.replay and settings.speculative > 0)
    states = (2 + model.checkpoint_states if cached else 1) + drafts
    needed = softmax_groups * ceil(settings.context / block_size) + linear_groups * states
    return Fit(
        sequences=blocks / needed,
        states=states,
        state_bytes=linear_groups * block,
        token_bytes=token * softmax,
        block_size=block_size,
        blocks=blocks,
        stored_bytes=linear_groups * block,
        host_bytes=0,
        transfer_bytes=moved_bytes(model, settings, model.conv_width - 1),
    )


def sglang_slots(settings: Settings) -> int:
    """States of a running request in SGLang 0.5.23: mem_cache/kv_cache_configurator.py,
    _calculate_mamba_ratio, with overlap scheduling and the extra_buffer strategy."""
    if settings.slots > 0:
        return settings.slots
    return 5 if settings.prefix_caching else 1


def sglang(model: CacheModel, settings: Settings) -> Fit:
    """SGLang 0.5.23. A pool of state slots, several to a request, and a pool of tokens.

    mem_cache/kv_cache_configurator.py, _handle_max_mamba_cache and resolve_max_num_reqs, and
    model_executor/pool_configurator.py. With speculation at most 48 requests run unless
    --max-running-requests says otherwise (arg_groups/speculative_hook.py), and each keeps the state
    of every draft; ReplaySSM keeps their inputs instead.
    """
    taps = model.conv_width - 1
    state = state_bytes(model, settings, taps)
    cell = layer_token_bytes(model, settings) * softmax_layers(model, settings)
    per_request = sglang_slots(settings)
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
        stored_bytes=state,
        host_bytes=0,
        transfer_bytes=moved_bytes(model, settings, taps),
    )


def sglang_ring_bytes(model: CacheModel, settings: Settings) -> float:
    """Bytes of the inputs that ReplaySSM keeps of a request with Gated DeltaNet layers.

    SGLang 0.5.23: configs/mamba_utils.py, replayssm_ring_bytes_per_req, at the default
    --linear-replayssm-cache-len of 16: values and keys in two parts each, and the gates.
    """
    total = 0.0
    for group in model.states:
        inputs = group.heads * group.values + group.conv_key_heads / 2 * group.keys
        parts = 2 if settings.conv_bytes < 4 else 1
        total += group.layers * 16 * (parts * inputs * settings.conv_bytes + group.heads * 4)
    return total / settings.devices


def llamacpp(model: CacheModel, settings: Settings) -> Fit:
    """llama.cpp 2026-10. A slot has rows of state and convolution, always in float32, one more for
    each draft token, and cells for its context, a multiple of 256.

    src/llama-memory-recurrent.cpp and llama-hparams.cpp; tools/server/server-context.cpp keeps up
    to 32 checkpoints of a slot in host memory (--ctx-checkpoints), each with one row.
    """
    taps = model.conv_width - 1
    float32 = replace(settings, state_bytes=4.0, conv_bytes=4.0)
    row = state_bytes(model, float32, taps)
    copied = copy_bytes(model, float32, taps)
    token = layer_token_bytes(model, settings) * softmax_layers(model, settings)
    cells = 256 * ceil(settings.context / 256)
    rows = 1 + settings.speculative
    return Fit(
        sequences=floor(settings.memory / (rows * row + cells * token)),
        states=rows,
        state_bytes=row,
        token_bytes=token,
        block_size=256,
        blocks=0,
        stored_bytes=copied,
        host_bytes=copied * settings.checkpoints if settings.prefix_caching else 0,
        transfer_bytes=copied + settings.context * token,
    )


def mlx(model: CacheModel, settings: Settings) -> Fit:
    """MLX-LM 0.32.2. A sequence has its own arrays; keys and values grow by 256 tokens.

    models/cache.py, KVCache and ArraysCache; models/gated_delta.py makes the state in float32. The
    prompt cache keeps ten further sequences with their states (--prompt-cache-size).
    """
    taps = model.conv_width - 1
    state = state_bytes(model, settings, taps)
    copied = copy_bytes(model, settings, taps)
    token = layer_token_bytes(model, settings) * softmax_layers(model, settings)
    cells = 256 * ceil(settings.context / 256)
    return Fit(
        sequences=floor(settings.memory / (state + cells * token)),
        states=1,
        state_bytes=state,
        token_bytes=token,
        block_size=256,
        blocks=0,
        stored_bytes=copied + cells * token,
        host_bytes=0,
        transfer_bytes=copied + settings.context * token,
    )
