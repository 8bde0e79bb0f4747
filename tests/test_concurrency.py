"""The calculator against the bytes of real cache objects and against what vLLM printed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import statetrim as st
import tiny
from statetrim import concurrency
from statetrim.key_values import KeyValues, key_values

BATCH, TOKENS = 3, 10


def tensors(value: Any, seen: set[int]) -> list[torch.Tensor]:
    """Every tensor a cache object holds, once."""
    if id(value) in seen:
        return []
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [tensor for item in value.values() for tensor in tensors(item, seen)]
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in tensors(item, seen)]
    return tensors(vars(value), seen) if hasattr(value, "__dict__") else []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("model_type", tiny.MODEL_TYPES)
def test_bytes_of_every_runnable_family_equal_the_real_cache_object(
    model_type: str, dtype: torch.dtype, checkpoint: Callable[[str], Path]
) -> None:
    opened = st.open(checkpoint(model_type))
    model = st.load(opened, dtype=dtype)
    ids = torch.randint(1, tiny.VOCABULARY, (BATCH, TOKENS))
    with torch.no_grad():
        output = model(input_ids=ids, use_cache=True)
    cache = output.get("past_key_values", output.get("cache_params"))
    held = tensors(cache.layers, set())
    kept = key_values(opened.config, opened.geometry)
    assert kept is not None
    ours = concurrency.sequence_bytes(
        opened.geometry, kept, context=TOKENS, dtype=str(dtype).removeprefix("torch.")
    )
    # Qwen4-Exp's first softmax layer also keeps the positions, three to a token.
    positions = [tensor for tensor in held if tensor.dtype == torch.int64]
    assert len(positions) == model_type.startswith("qwen4_exp")
    assert all(tensor.nbytes == BATCH * TOKENS * 3 * 8 for tensor in positions)
    assert sum(t.nbytes for t in held if t.is_floating_point()) == BATCH * ours.total


def qwen3_next(head_k_dim: int, head_v_dim: int = 128) -> st.Geometry:
    """Qwen3-Next's heads in three linear layers."""
    return st.Geometry((0, 1, 2), 16, 32, head_k_dim, head_v_dim, 32, 32, 4)


ONE_SOFTMAX_LAYER = KeyValues(layers=1, numel=2 * 2 * 256)
