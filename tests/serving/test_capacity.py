"""Computed sizes against the bytes of real cache objects and against the log of vLLM."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import statetrim as st
from helpers import tiny
from statetrim.families import families
from statetrim.families.contract import KVCacheSize
from statetrim.serving import capacity as concurrency

BATCH, TOKENS = 3, 10


def kv_cache_size(config: dict[str, Any], geometry: st.Geometry) -> KVCacheSize | None:
    return families()[config["model_type"]].kv_cache_size(config, geometry)


def tensors(value: Any, seen: set[int]) -> list[torch.Tensor]:
    """Every tensor of a cache object, once."""
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
    cache_tensors = tensors(cache.layers, set())
    softmax = kv_cache_size(opened.config, opened.geometry)
    assert softmax is not None
    counted = concurrency.sequence_bytes(
        opened.geometry, softmax, context=TOKENS, dtype=str(dtype).removeprefix("torch.")
    )
    # Qwen4-Exp's first softmax layer also stores three positions per token.
    positions = [tensor for tensor in cache_tensors if tensor.dtype == torch.int64]
    assert len(positions) == model_type.startswith("qwen4_exp")
    assert all(tensor.nbytes == BATCH * TOKENS * 3 * 8 for tensor in positions)
    assert sum(t.nbytes for t in cache_tensors if t.is_floating_point()) == BATCH * counted.total


RECORDED = json.loads((Path(__file__).parents[1] / "data" / "vllm-startup.json").read_text())


@pytest.mark.parametrize("record", RECORDED, ids=lambda record: str(record["case"].values()))
def test_pages_blocks_and_concurrency_equal_what_vllm_said(record: dict[str, Any]) -> None:
    case, vllm = record["case"], record["vllm"]
    every, layers = case["softmax_every"], case["layers"]
    linear = tuple(layer for layer in range(layers) if (layer + 1) % every)
    geometry = st.Geometry(linear, 16, 32, case["head_k_dim"], case["head_v_dim"], 32, 32, 4)
    softmax = KVCacheSize(layers=layers - len(linear), numel=2 * 2 * 256)
    layout = concurrency.vllm_pages(
        geometry,
        softmax,
        dtype=vllm["state_dtypes"][0],
        state_dtype=vllm["state_dtypes"][1],
        alignment=case["block_size"] or 128,  # vLLM's default on a CPU
    )
    assert layout is not None
    convolution, state = (math.prod(shape) for shape in vllm["state_shapes"])
    assert layout.state_bytes == 2 * convolution + 4 * state
    assert layout.block_size == vllm["block_size"]
    assert layout.page_bytes == vllm["page_bytes"]
    assert layout.softmax_groups + layout.linear_groups == vllm["groups"]
    assert layout.blocks(case["memory"]) == vllm["blocks"]
    concurrent = layout.concurrency(
        case["memory"], case["context"], prefix_caching=case["prefix_caching"]
    )
    assert concurrent == vllm["concurrency"]
    assert f"{concurrent:.2f}" == record["log"]["concurrency"]
    assert layout.block_size == int(record["log"]["block_size"])


def test_half_the_keys_equal_half_the_bytes_and_together_they_quarter_it() -> None:
    """A bfloat16 state of the original halves the bytes too, without pruning."""
    geometry = st.Geometry(tuple(range(36)), 16, 32, 128, 128, 32, 32, 4)
    softmax = KVCacheSize(layers=12, numel=2 * 2 * 256)
    common = {"memory": 2**34, "context": 4096, "dtype": "bfloat16"}
    now = concurrency.capacity(geometry, softmax, **common)
    rounded = concurrency.capacity(geometry, softmax, **common, state_dtype="bfloat16")
    cut = concurrency.capacity(geometry.resized(64), softmax, **common)
    both = concurrency.capacity(geometry.resized(64), softmax, **common, state_dtype="bfloat16")
    assert now.vllm and rounded.vllm and cut.vllm and both.vllm
    assert rounded.state_bytes == cut.state_bytes == now.state_bytes // 2
    assert rounded.vllm == cut.vllm
    assert both.vllm.sequences > cut.vllm.sequences > now.vllm.sequences
    assert now.state_bytes == 72 * 2**20


@pytest.mark.parametrize(
    ("change", "sentence"),
    [({"memory": 0}, "cache memory"), ({"context": 0}, "context"), ({"context": 2**40}, "context")],
)
def test_sizes_out_of_bounds_are_refused(change: dict[str, int], sentence: str) -> None:
    geometry = st.Geometry((0,), 1, 1, 16, 16)
    arguments: dict[str, Any] = {"memory": 2**30, "context": 1024, "dtype": "float32", **change}
    with pytest.raises(st.StatetrimError, match=sentence):
        concurrency.capacity(geometry, KVCacheSize(0, 0), **arguments)


def test_a_model_without_softmax_layers_has_no_blocks_and_still_a_bound() -> None:
    geometry = st.Geometry((0, 1), 2, 2, 16, 16)
    result = concurrency.capacity(
        geometry, KVCacheSize(0, 0), memory=2**20, context=64, dtype="float32"
    )
    assert result.vllm is None
    assert result.sequences_unpaged == 2**20 // (2 * 2 * 16 * 16 * 4)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "qwen3_next", "num_key_value_heads": "2"},
        {"model_type": "qwen3_next", "head_dim": 10**12},
        {"model_type": "qwen3_next", "num_key_value_heads": -1},
    ],
)
def test_hostile_attention_fields_end_in_a_sentence(config: dict[str, Any]) -> None:
    with pytest.raises(st.StatetrimError, match="config field"):
        kv_cache_size({"num_hidden_layers": 4, **config}, st.Geometry((0, 1, 2), 1, 1, 1, 1))


@pytest.mark.parametrize("model_type", [t for t in tiny.MODEL_TYPES if t not in tiny.VISION_TYPES])
def test_a_silent_config_means_what_the_stock_class_takes_it_for(model_type: str) -> None:
    from transformers import AutoConfig

    config = AutoConfig.for_model(model_type)
    stock = config.to_dict() | {"num_hidden_layers": config.num_hidden_layers}
    layer_fields = (
        "num_hidden_layers", "layers_block_type", "layer_types", "hybrid_override_pattern",
    )  # fmt: skip
    silent = {name: stock[name] for name in ("model_type", *layer_fields) if name in stock}
    geometry = st.Geometry(tuple(range(config.num_hidden_layers // 2)), 1, 1, 1, 1)
    from_silent, from_stock = kv_cache_size(silent, geometry), kv_cache_size(stock, geometry)
    assert from_silent is not None and from_silent == from_stock


def test_what_is_not_known_is_not_guessed() -> None:
    geometry = st.Geometry((0,), 1, 1, 1, 1)
    assert kv_cache_size({"model_type": "kimi_linear"}, geometry) is None
    assert kv_cache_size({"model_type": "gla", "attn": {"layers": [1]}}, geometry) is None
    assert kv_cache_size({"model_type": "delta_net"}, geometry) == KVCacheSize(0, 0)
