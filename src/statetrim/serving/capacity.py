"""How many sequences fit: what one of them holds, and how vLLM lays that out in pages and blocks.

vLLM gives the recurrent layers and the softmax layers of a hybrid model blocks of one size from one
pool. A block must hold the whole state of a layer, so the state decides how many tokens of keys
and values share a block; and layers are put in groups of equal size, each with its own block table.
Followed from vLLM 0.32.0 (platforms/interface.py, v1/core/kv_cache_utils.py); one GPU, no
speculative decoding.
"""

from dataclasses import dataclass
from math import ceil

from ..errors import StatetrimError
from ..families.contract import KVCacheSize
from ..geometry import Geometry

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
ALIGNMENT = 16
"""Tokens to whose multiples blocks are rounded: 16 on a GPU, 128 on a CPU, or --block-size."""
MAX_CONTEXT = 2**30
MAX_MEMORY = 2**50


@dataclass(frozen=True)
class SequenceBytes:
    """What one sequence of `context` tokens holds, in the layout of transformers."""

    state: int
    convolution: int
    key_values: int

    @property
    def total(self) -> int:
        return self.state + self.convolution + self.key_values


def sequence_bytes(
    geometry: Geometry,
    softmax_cache: KVCacheSize,
    *,
    context: int,
    dtype: str,
    state_dtype: str = "float32",
) -> SequenceBytes:
    """State in `state_dtype`; convolution, keys and values in the model's `dtype`."""
    element_bytes = DTYPE_BYTES[dtype]
    return SequenceBytes(
        state=geometry.state_numel * DTYPE_BYTES[state_dtype],
        convolution=geometry.conv_numel * element_bytes,
        key_values=context * softmax_cache.layers * softmax_cache.numel * element_bytes,
    )


@dataclass(frozen=True)
class Pages:
    """vLLM's layout of a hybrid model's cache."""

    state_bytes: int  # one linear layer of one sequence: state and convolution, unpadded
    token_bytes: int  # one softmax layer, one token
    block_size: int  # tokens of keys and values in a block
    page_bytes: int  # one layer's part of a block; a state is padded to this
    block_bytes: int  # of all layers in a group
    softmax_groups: int
    linear_groups: int

    def blocks(self, memory: int) -> int:
        """Blocks in a cache of `memory` bytes."""
        return memory // self.block_bytes

    def blocks_per_sequence(self, context: int, *, prefix_caching: bool) -> int:
        """With prefix caching vLLM holds a second state: the last one at a block's border."""
        states = 2 if prefix_caching else 1
        return self.softmax_groups * ceil(context / self.block_size) + self.linear_groups * states

    def concurrency(self, memory: int, context: int, *, prefix_caching: bool) -> float:
        """Sequences of `context` tokens at once: "Maximum concurrency" in vLLM's log."""
        return self.blocks(memory) / self.blocks_per_sequence(
            context, prefix_caching=prefix_caching
        )


def vllm_pages(
    geometry: Geometry,
    softmax_cache: KVCacheSize,
    *,
    dtype: str,
    state_dtype: str = "float32",
    alignment: int = ALIGNMENT,
) -> Pages | None:
    """None for a model without softmax layers: then nothing is aligned."""
    if not softmax_cache.layers or not softmax_cache.numel:
        return None
    layers, geometry = len(geometry.layers), geometry.resized()  # all padded to the widest
    # vLLM keeps one input less than the convolution is wide: the present one is at hand.
    taps = max(geometry.conv_width - 1, 0)
    convolution = geometry.conv_numel // layers // max(geometry.conv_width, 1) * taps
    state_bytes = (
        geometry.state_numel // layers * DTYPE_BYTES[state_dtype] + convolution * DTYPE_BYTES[dtype]
    )
    token_bytes = softmax_cache.numel * DTYPE_BYTES[dtype]
    block_size = alignment * ceil(state_bytes / (alignment * token_bytes))
    page_bytes = block_size * token_bytes
    fewer, more = sorted((layers, softmax_cache.layers))
    group_size = more if more < 1.5 * fewer else fewer
    return Pages(
        state_bytes=state_bytes,
        token_bytes=token_bytes,
        block_size=block_size,
        page_bytes=page_bytes,
        block_bytes=page_bytes * group_size,
        softmax_groups=ceil(softmax_cache.layers / group_size),
        linear_groups=ceil(layers / group_size),
    )


@dataclass(frozen=True)
class VllmCapacity:
    """What vLLM prints when it starts."""

    block_size: int
    page_bytes: int
    blocks: int
    sequences: float  # maximum concurrency without prefix caching
    sequences_prefix_caching: float


@dataclass(frozen=True)
class Capacity:
    """What fits in a given memory, for one shape and one dtype of the state."""

    shape: str
    state_dtype: str
    dtype: str  # of convolution, keys and values
    state_bytes: int  # per sequence, all layers
    convolution_bytes: int
    key_value_bytes: int  # per token, all layers
    sequences_unpaged: int  # memory over the bytes of one sequence: a bound for any engine
    vllm: VllmCapacity | None  # None where there are no softmax layers, so nothing is aligned


def capacity(
    geometry: Geometry,
    softmax_cache: KVCacheSize,
    *,
    memory: int,
    context: int,
    dtype: str,
    state_dtype: str = "float32",
    alignment: int = ALIGNMENT,
) -> Capacity:
    """How many sequences of `context` tokens fit in a cache of `memory` bytes."""
    if not 1 <= memory <= MAX_MEMORY:
        raise StatetrimError(f"cache memory must lie between 1 byte and 2^50, not {memory}")
    if not 1 <= context <= MAX_CONTEXT:
        raise StatetrimError(f"a context has between 1 and 2^30 tokens, not {context}")
    per_sequence = sequence_bytes(
        geometry, softmax_cache, context=context, dtype=dtype, state_dtype=state_dtype
    )
    layout = vllm_pages(
        geometry, softmax_cache, dtype=dtype, state_dtype=state_dtype, alignment=alignment
    )
    return Capacity(
        shape=geometry.shape.replace(" x ", "x"),
        state_dtype=state_dtype,
        dtype=dtype,
        state_bytes=per_sequence.state,
        convolution_bytes=per_sequence.convolution,
        key_value_bytes=softmax_cache.layers * softmax_cache.numel * DTYPE_BYTES[dtype],
        sequences_unpaged=memory // per_sequence.total,
        vllm=None if layout is None else _vllm_capacity(layout, memory, context),
    )


def _vllm_capacity(layout: Pages, memory: int, context: int) -> VllmCapacity:
    plain, caching = (
        layout.concurrency(memory, context, prefix_caching=caching) for caching in (False, True)
    )
    return VllmCapacity(layout.block_size, layout.page_bytes, layout.blocks(memory), plain, caching)
