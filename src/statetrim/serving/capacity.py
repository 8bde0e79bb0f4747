"""Capacity: bytes of one sequence, and how vLLM divides cache memory into pages and blocks.

vLLM allocates the cache of linear and softmax layers of a hybrid from one pool of equal blocks.
A block must hold the whole state of a layer, so the state's size sets the number of tokens of keys
and values per block. Layers form groups of equal size, each with its own block table. This follows
vLLM 0.32.0 (platforms/interface.py, v1/core/kv_cache_utils.py) on one GPU without speculative
decoding.
"""

from dataclasses import dataclass
from math import ceil

from ..errors import StatetrimError
from ..families.contract import KVCacheSize
from ..geometry import Geometry

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
ALIGNMENT = 16
"""Blocks hold a multiple of this many tokens: 16 on a GPU, 128 on a CPU, or --block-size."""
MAX_CONTEXT = 2**30  # tokens
MAX_MEMORY = 2**50  # bytes


@dataclass(frozen=True)
class SequenceBytes:
    """Bytes of one sequence in the cache of transformers."""

    state: int
    convolution: int
    key_values: int

    @property
    def total(self) -> int:
        return self.state + self.convolution + self.key_values


def sequence_bytes(
    geometry: Geometry,
    kv_cache: KVCacheSize,
    *,
    context: int,
    dtype: str,
    state_dtype: str = "float32",
) -> SequenceBytes:
    """Bytes of a sequence of `context` tokens; `dtype` is that of the convolution state, keys and
    values."""
    element_bytes = DTYPE_BYTES[dtype]
    return SequenceBytes(
        state=geometry.state_numel * DTYPE_BYTES[state_dtype],
        convolution=geometry.conv_numel * element_bytes,
        key_values=context * kv_cache.layers * kv_cache.numel * element_bytes,
    )


@dataclass(frozen=True)
class Pages:
    """Sizes of pages, blocks and groups in vLLM's cache of a hybrid."""

    state_bytes: int  # one linear layer of one sequence: state and convolution, unpadded
    token_bytes: int  # one softmax layer, one token
    block_size: int  # tokens of keys and values in a block
    page_bytes: int  # one layer in a block; a state is padded to this
    block_bytes: int  # of all layers in a group
    softmax_groups: int
    linear_groups: int

    def blocks(self, memory: int) -> int:
        """Blocks in a cache of `memory` bytes."""
        return memory // self.block_bytes

    def blocks_per_sequence(self, context: int, *, prefix_caching: bool) -> int:
        """Blocks of one sequence; prefix caching stores a second state, of the last full block."""
        states = 2 if prefix_caching else 1
        return self.softmax_groups * ceil(context / self.block_size) + self.linear_groups * states

    def concurrency(self, memory: int, context: int, *, prefix_caching: bool) -> float:
        """Sequences of `context` tokens that fit at once, not rounded: "Maximum concurrency" in
        vLLM's log."""
        per_sequence = self.blocks_per_sequence(context, prefix_caching=prefix_caching)
        return self.blocks(memory) / per_sequence


def vllm_pages(
    geometry: Geometry,
    kv_cache: KVCacheSize,
    *,
    dtype: str,
    state_dtype: str = "float32",
    alignment: int = ALIGNMENT,
) -> Pages | None:
    """vLLM's cache layout; None for a model without softmax layers, whose states need no blocks.

    `dtype` is that of the convolution state, keys and values. A block holds a multiple of
    `alignment` tokens. With widths by layer, all layers count with the widest.
    """
    if not kv_cache.layers or not kv_cache.numel:
        return None
    layers, geometry = len(geometry.layers), geometry.resized()  # vLLM pads to the widest
    # vLLM stores the inputs before the current one: one fewer than the convolution's width.
    taps = max(geometry.conv_width - 1, 0)
    convolution = geometry.conv_numel // layers // max(geometry.conv_width, 1) * taps
    state_bytes = (
        geometry.state_numel // layers * DTYPE_BYTES[state_dtype] + convolution * DTYPE_BYTES[dtype]
    )
    token_bytes = kv_cache.numel * DTYPE_BYTES[dtype]
    block_size = alignment * ceil(state_bytes / (alignment * token_bytes))
    page_bytes = block_size * token_bytes
    fewer, more = sorted((layers, kv_cache.layers))
    group_size = more if more < 1.5 * fewer else fewer
    return Pages(
        state_bytes=state_bytes,
        token_bytes=token_bytes,
        block_size=block_size,
        page_bytes=page_bytes,
        block_bytes=page_bytes * group_size,
        softmax_groups=ceil(kv_cache.layers / group_size),
        linear_groups=ceil(layers / group_size),
    )


@dataclass(frozen=True)
class VllmCapacity:
    """What vLLM logs about its cache when it starts."""

    block_size: int
    page_bytes: int
    blocks: int
    sequences: float  # maximum concurrency without prefix caching
    sequences_prefix_caching: float


@dataclass(frozen=True)
class Capacity:
    """What fits in a cache, for one shape and one dtype of the state."""

    shape: str
    state_dtype: str
    dtype: str  # of convolution, keys and values
    state_bytes: int  # per sequence, all layers
    convolution_bytes: int
    key_value_bytes: int  # per token, all layers
    sequences_unpaged: int  # memory / bytes per sequence: an upper bound for any engine
    vllm: VllmCapacity | None  # None without softmax layers


def capacity(
    geometry: Geometry,
    kv_cache: KVCacheSize,
    *,
    memory: int,
    context: int,
    dtype: str,
    state_dtype: str = "float32",
    alignment: int = ALIGNMENT,
) -> Capacity:
    """How many sequences of `context` tokens fit in a cache of `memory` bytes: by their bytes,
    rounded down, and in vLLM, not rounded (None without softmax layers).

    Raises StatetrimError for a memory or a context that is out of range.
    """
    if not 1 <= memory <= MAX_MEMORY:
        raise StatetrimError(f"cache memory must lie between 1 byte and 2^50, not {memory}")
    if not 1 <= context <= MAX_CONTEXT:
        raise StatetrimError(f"a context has between 1 and 2^30 tokens, not {context}")
    per_sequence = sequence_bytes(
        geometry, kv_cache, context=context, dtype=dtype, state_dtype=state_dtype
    )
    layout = vllm_pages(
        geometry, kv_cache, dtype=dtype, state_dtype=state_dtype, alignment=alignment
    )
    return Capacity(
        shape=geometry.shape.replace(" x ", "x"),
        state_dtype=state_dtype,
        dtype=dtype,
        state_bytes=per_sequence.state,
        convolution_bytes=per_sequence.convolution,
        key_value_bytes=kv_cache.layers * kv_cache.numel * DTYPE_BYTES[dtype],
        sequences_unpaged=memory // per_sequence.total,
        vllm=None if layout is None else _vllm_capacity(layout, memory, context),
    )


def _vllm_capacity(layout: Pages, memory: int, context: int) -> VllmCapacity:
    """What vLLM logs at its start for a cache of `memory` bytes: sizes, blocks, and how many
    sequences of `context` tokens fit, not rounded, without and with prefix caching."""
    return VllmCapacity(
        layout.block_size,
        layout.page_bytes,
        layout.blocks(memory),
        layout.concurrency(memory, context, prefix_caching=False),
        layout.concurrency(memory, context, prefix_caching=True),
    )
