"""Blocks and prefixes of vLLM, SGLang and llama.cpp against what public reports say of them."""

import json
from pathlib import Path
from typing import Any

import pytest

import statetrim as st
from helpers import raw
from helpers.cases import load_cases
from helpers.raw import RELEASED
from statetrim.serving.capacity.arithmetic import Settings
from statetrim.serving.capacity.compare import cache_model, default_state_dtype
from statetrim.serving.engines import find_engine
from statetrim.serving.engines.llamacpp import llamacpp
from statetrim.serving.engines.sglang import sglang
from statetrim.serving.engines.vllm import vllm

BYTES = {"float32": 4, "bfloat16": 2}


@pytest.mark.parametrize(("source", "tokens", "name", "changes", "more"), load_cases("vllm-blocks"))
def test_the_block_is_the_one_that_users_saw(
    source: str, tokens: int, name: str, changes: dict[str, Any], more: dict[str, Any]
) -> None:
    """With the model of the calculator that has this state, changed to theirs, and their flags."""
    model = raw.recorded(RELEASED[name] | changes)
    dtype = default_state_dtype(find_engine("vllm"), model)
    settings = {"memory": 2**34, "context": 4096, "state_bytes": BYTES[dtype]} | more
    fit = vllm(cache_model(model, model.geometry), Settings(**settings))
    assert fit.block_size == tokens, source


@pytest.mark.parametrize("drafts", [0, 7])
def test_the_shortest_prefix_is_where_users_first_saw_hits(drafts: int) -> None:
    """syv-ai/qwen38-27b-rtx3090 issue 102: floor(tokens / block) blocks are found again. With
    drafts vLLM 0.33 finds as many if the next token is the same too; earlier ones, one fewer."""
    model = raw.recorded(RELEASED["Qwen3.5-27B"])
    settings = Settings(memory=2**34, context=4096, speculative=drafts)
    fit = vllm(cache_model(model, model.geometry), settings)
    next_token = 1 if drafts else 0
    hits = (tokens for tokens in range(1, 10_000) if (tokens - next_token) // fit.block_size)
    assert fit.shortest_prefix == next(hits)


def test_bytes_of_a_cached_block_follow_by_hand() -> None:
    """Qwen3.5-27B: 16 softmax layers and 3 groups of 16 linear ones; each has a page of 784
    tokens, which the state of a linear layer fills except for padding."""
    model = raw.recorded(RELEASED["Qwen3.5-27B"])
    caches = cache_model(model, model.geometry)
    settings = Settings(memory=2**34, context=4096)
    page = 784 * 2 * 4 * 256 * 2
    assert vllm(caches, settings).block_bytes == 64 * page
    state = 48 * (48 * 128 * 128 * 4 + 3 * (2 * 16 + 48) * 128 * 2)
    assert sglang(caches, settings).block_bytes == state + 64 * 16 * 2 * 4 * 256 * 2
    assert llamacpp(caches, settings).block_bytes == state + 48 * 3 * (2 * 16 + 48) * 128 * 2


def test_as_many_requests_may_run_as_users_saw() -> None:
    model = raw.recorded(RELEASED["Qwen3.5-27B"])
    caches = cache_model(model, model.geometry)
    small = Settings(memory=int(3.86 * 2**30), context=122_633, devices=2)
    assert vllm(caches, small).requests == 161  # vllm 49064: exceeds available Mamba cache blocks
    card = Settings(memory=int(14.6 * 2**30), context=4096, kv_bytes=1)
    assert sglang(caches, card).requests == 9  # sglang 38846: capped to 9 by the mamba state cache


def test_sglang_stores_states_at_the_chunk_of_the_config() -> None:
    settings = Settings(memory=2**34, context=4096)
    for name, tokens in (("Qwen3.5-27B", 64), ("Falcon-H1-7B", 128)):
        changes = {"mamba_chunk_size": 128} if name.startswith("Falcon") else {}
        model = raw.recorded(RELEASED[name] | changes)
        fit = sglang(cache_model(model, model.geometry), settings)
        assert fit.shortest_prefix == tokens


def test_a_context_that_no_block_fits_into_is_named(tmp_path: Path) -> None:
    """vllm 48401: no hit with 4,096 tokens, hits with 16,384; blocks have 8,320."""
    config = RELEASED["NVIDIA-Nemotron-3-Super-120B-A12B-FP8"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    serving = {"memory_gib": 40, "kv_dtype": "fp8"}
    for context, is_inert in ((4096, True), (8320, True), (8321, False), (16_384, False)):
        report = st.inspect(tmp_path, context=context, **serving)
        rows = {row.state_dtype: row.fit for row in report.deployment.capacity}
        assert rows["float32"].shortest_prefix == 8320
        warnings = [text for text in report.warnings if "vLLM never hits" in text]
        assert bool(warnings) == is_inert
        assert all(" has 8,320 with " in text for text in warnings)
    off = st.inspect(tmp_path, context=4096, prefix_caching=False, **serving)
    assert not any("never hits" in text for text in off.warnings)
