"""What the arithmetic of engines has in common: how many sequences fit in a memory.

The function of each engine is in its file in `engines/`. It follows the files of the engine that
its docstring names, and the engine's own code checks it (`just engines`). The calculator of
the documentation site runs these functions, translated by `tools/write_calculator.py`, so they keep
to numbers, tuples, loops and conditions.
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
    bounded_gate: bool = False  # KDA with a lower bound of its gate
    draft_layers: int = 0  # softmax layers of the MTP head, cached with speculation
    ple_layers: int = 0  # Qwen4-Exp: layers with a PLE convolution, which every device stores
    ple_inputs: int = 0  # that it keeps
    ple_width: int = 0  # of an input
    specs_by_shape: bool = False  # vLLM: layers of different shapes are in different groups
    chunk: int = 64  # SGLang: tokens between states that prefill can store


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
    flashinfer: bool = False  # vLLM: prefills Gated DeltaNet of 128x128, on Hopper and Blackwell
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
    requests: int  # that may run at once, at most; 0: the states set no limit
    shortest_prefix: int  # tokens of a shared prefix that is cached; 0: none is, or not known
    block_bytes: float  # of a cached block: its keys and values, and the state at its end
    stored_bytes: float  # of one state in the prefix cache
    host_bytes: float  # states that a sequence keeps in host memory by default
    transfer_bytes: float  # a sequence that moves to another server


def conv_key_heads(group: StateLayers, model: CacheModel, devices: int) -> int:
    """Key heads of a layer's convolution on all devices, copies included."""
    if model.shared_groups and (group.conv_key_heads // 2) % devices != 0:
        return 2 * devices
    return group.conv_key_heads


def conv_channels(group: StateLayers, model: CacheModel, devices: int) -> float:
    """Channels of a layer's convolution on one device."""
    keys = conv_key_heads(group, model, devices) * group.keys
    return (keys + group.conv_value_heads * group.values) / devices


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


def arrays_of_sequences(model: CacheModel, settings: Settings, states: int = 1) -> Fit:
    """Every sequence has its own arrays, without a pool: so many states, and keys and values that
    grow by 256 tokens."""
    taps = model.conv_width - 1
    state = state_bytes(model, settings, taps)
    copied = copy_bytes(model, settings, taps)
    token = layer_token_bytes(model, settings) * softmax_layers(model, settings)
    cells = 256 * ceil(settings.context / 256)
    return Fit(
        sequences=floor(settings.memory / (states * state + cells * token)),
        states=states,
        state_bytes=state,
        token_bytes=token,
        block_size=256,
        blocks=0,
        requests=0,
        shortest_prefix=1 if settings.prefix_caching else 0,
        block_bytes=copied + 256 * token,
        stored_bytes=copied + cells * token,
        host_bytes=0,
        transfer_bytes=copied + settings.context * token,
    )
