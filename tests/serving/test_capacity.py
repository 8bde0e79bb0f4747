"""Computed sizes against real cache objects, vLLM's log, and the code of vLLM and SGLang."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import statetrim as st
from helpers import raw, tiny
from helpers.cases import load_cases
from helpers.raw import RELEASED
from helpers.tiny import Load
from statetrim.families import families
from statetrim.families.contract import KVCacheSize
from statetrim.serving.capacity import arithmetic
from statetrim.serving.capacity.compare import (
    cache_model,
    capacity,
    default_state_dtype,
    settings_for,
    state_layers,
)
from statetrim.serving.capacity.parts import Paging
from statetrim.serving.engines import find_engine
from statetrim.serving.engines.llamacpp import llamacpp
from statetrim.serving.engines.sglang import sglang, sglang_ring_bytes
from statetrim.serving.engines.vllm import vllm
from statetrim.serving.options import ServingOptions
from statetrim.snapshots.snapshot import recode

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
    model_type: str, dtype: torch.dtype, checkpoint: Load
) -> None:
    opened = st.open(checkpoint(model_type))
    model = st.load(opened, dtype=dtype)
    ids = torch.randint(1, tiny.VOCABULARY, (BATCH, TOKENS))
    with torch.no_grad():
        output = model(input_ids=ids, use_cache=True)
    cache = output.get("past_key_values", output.get("cache_params"))
    cache_tensors, size = tensors(cache.layers, set()), dtype.itemsize
    serving = arithmetic.Settings(memory=1, context=TOKENS, conv_bytes=size, kv_bytes=size)
    caches = cache_model(opened, opened.geometry)
    counted = arithmetic.moved_bytes(caches, serving, opened.geometry.conv_width)
    # Qwen4-Exp's first softmax layer also stores three positions per token.
    positions = [tensor for tensor in cache_tensors if tensor.dtype == torch.int64]
    assert len(positions) == model_type.startswith("qwen4_exp")
    assert all(tensor.nbytes == BATCH * TOKENS * 3 * 8 for tensor in positions)
    assert sum(t.nbytes for t in cache_tensors if t.is_floating_point()) == BATCH * counted


DATA = Path(__file__).parents[1] / "data"
STARTUPS = json.loads((DATA / "vllm-startup.json").read_text())
VLLM = json.loads((DATA / "vllm-capacity.json").read_text())
SGLANG = json.loads((DATA / "sglang-capacity.json").read_text())
LLAMACPP = json.loads((DATA / "llamacpp-memory.json").read_text())
BY_LAYER = json.loads((DATA.parents[1] / "results" / "uneven-capacity.json").read_text())
BYTES = {"float32": 4, "bfloat16": 2, "fp8": 1}


def recorded_model(case: dict[str, Any]) -> arithmetic.CacheModel:
    """The caches of a recorded config with the widths of the case."""
    model = raw.recorded(RELEASED[case["model"]] | case["cut"])
    caches = cache_model(model, model.geometry)
    if "kda_backend" in case:  # on Hopper, FlashKDA by another gate than this config has
        caches = replace(caches, bounded_gate=case["kda_backend"] == "flashkda")
    return caches


def recorded_settings(case: dict[str, Any]) -> arithmetic.Settings:
    return arithmetic.Settings(
        memory=case["memory_gib"] * 2**30,
        context=case["context"],
        state_bytes=BYTES[case["state"]],
        kv_bytes=BYTES[case["kv"]],
        speculative=case["speculative"],
        prefix_caching=case["prefix_caching"],
        devices=case["devices"],
        replay=case["replay"],
        state_ratio=case.get("state_ratio", 0.9),
        flashinfer=case.get("gdn_backend") == "flashinfer",
    )


def test_every_setting_equals_vllms_own_functions() -> None:
    assert len(VLLM["cases"]) >= 700
    assert sum("prefix" in case for case in VLLM["cases"]) >= 300
    for case in VLLM["cases"]:
        fit = vllm(recorded_model(case), recorded_settings(case))
        assert (fit.block_size, fit.blocks) == (case["block_size"], case["blocks"]), case
        assert fit.sequences == pytest.approx(case["sequences"], abs=1e-6), case
        assert fit.shortest_prefix == case.get("prefix", fit.shortest_prefix), case


def test_every_setting_equals_sglangs_own_pool_sizing() -> None:
    assert len(SGLANG["cases"]) >= 330
    for case in SGLANG["cases"]:
        fit = sglang(recorded_model(case), recorded_settings(case))
        if case["slots"]:  # none: SGLang refuses to start
            assert fit.blocks == case["slots"], case
        assert fit.sequences == min(case["requests"], case["tokens"] // case["context"]), case


@pytest.mark.parametrize("record", STARTUPS, ids=lambda record: str(record["case"].values()))
def test_blocks_and_concurrency_equal_what_vllm_said(record: dict[str, Any]) -> None:
    case, fields = record["case"], record["vllm"]
    every, layers = case["softmax_every"], case["layers"]
    linear = tuple(layer for layer in range(layers) if (layer + 1) % every)
    geometry = st.Geometry(linear, 16, 32, case["head_k_dim"], case["head_v_dim"], 32, 32, 4)
    caches = arithmetic.CacheModel(state_layers(geometry), 4, layers - len(linear), 2, 2 * 256)
    settings = arithmetic.Settings(
        memory=case["memory"],
        context=case["context"],
        state_bytes=BYTES[fields["state_dtypes"][1]],
        prefix_caching=case["prefix_caching"],
        alignment=case["block_size"] or 128,  # vLLM's default on a CPU
    )
    fit = vllm(caches, settings)
    assert fit.block_size == fields["block_size"] == int(record["log"]["block_size"])
    assert fit.blocks == fields["blocks"]
    assert fit.sequences == fields["concurrency"]
    assert f"{fit.sequences:.2f}" == record["log"]["concurrency"]


@pytest.mark.parametrize("name", [name for name in BY_LAYER["models"] if name.startswith("Qwen")])
def test_widths_by_layer_in_parts_equal_the_plugin_and_vllms_own_functions(name: str) -> None:
    model = raw.recorded(RELEASED[name.removeprefix("Qwen--")] | {"mtp_num_hidden_layers": 1})
    layers = model.geometry.layers
    for case in BY_LAYER["models"][name]:
        if case["state"] in ("original", "uniform") or "undivided" in case["state"]:
            continue
        whole = layers[: int(case["state"].split()[0])]
        widths = {layer: (128, 128) if layer in whole else (64, 64) for layer in layers}
        settings = arithmetic.Settings(
            memory=int(BY_LAYER["memory_gib"] * 2**30),
            context=1024,
            state_bytes=BYTES[case["state_dtype"]],
            speculative=case["speculative"],
            prefix_caching=False,
        )
        fit = capacity(model, model.geometry.with_shapes(widths), settings, find_engine("vllm"))
        # Recorded to 0.1; where both kinds of specs take as many pages, blocks are rounded twice.
        assert fit.sequences == pytest.approx(case["sequences"]["1024"], abs=0.1), case


@pytest.mark.parametrize("case", LLAMACPP["cases"], ids=str)
def test_rows_and_checkpoints_equal_llama_cpps_log(case: dict[str, Any]) -> None:
    heads, side = LLAMACPP["heads"], case["side"]
    linear = case["layers"] * 3 // 4
    key_heads, value_heads = heads["linear_num_key_heads"], heads["linear_num_value_heads"]
    layers = arithmetic.StateLayers(linear, value_heads, side, side, 2 * key_heads, value_heads)
    softmax = case["layers"] - linear, heads["num_key_value_heads"], 2 * heads["head_dim"]
    caches = arithmetic.CacheModel((layers,), 4, *softmax)
    fit = llamacpp(caches, arithmetic.Settings(memory=1, context=case["context"]))
    allocated = case["state_mib"] + case["convolution_mib"]
    assert case["dtypes"] == ["f32", "f32"]
    assert fit.state_bytes * case["rows"] / 2**20 == pytest.approx(allocated, abs=0.011)
    assert fit.stored_bytes / 2**20 == pytest.approx(case["checkpoint_mib"], abs=0.0011)
    attention = fit.token_bytes * case["context"] * case["slots"] / 2**20
    assert attention == pytest.approx(case["attention_mib"], abs=0.011)


def test_coded_copies_count_what_a_saved_prompt_takes(checkpoint: Load) -> None:
    model = st.open(checkpoint("qwen3_5_text"))
    ids = torch.randint(1, tiny.VOCABULARY, (1, TOKENS))
    with torch.no_grad():
        cache = st.load(model)(input_ids=ids, use_cache=True).past_key_values
    copies = recode(cache, model, 0.05)
    serving = arithmetic.Settings(memory=2**30, context=TOKENS, coded_share=copies.share)
    caches, taps = cache_model(model, model.geometry), model.geometry.conv_width
    counted = arithmetic.copy_bytes(caches, serving, taps)
    assert counted == pytest.approx(copies.state_bytes + copies.convolution_bytes, rel=0.05)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp", "mlx"])
def test_coded_copies_change_what_is_stored_outside_the_pool_alone(engine: str) -> None:
    caches = recorded_model({"model": "Qwen3.5-27B", "cut": {}})
    serving = arithmetic.Settings(memory=40 * 2**30, context=4096)
    function = find_engine(engine).fit
    assert function is not None
    plain, coded = function(caches, serving), function(caches, replace(serving, coded_share=0.04))
    saved = plain.transfer_bytes - coded.transfer_bytes
    assert saved > 0.9 * 144 * 2**20  # of 144 MiB of states
    copies = {"vllm": (0, 0), "sglang": (0, 0), "llamacpp": (1, 32), "mlx": (1, 0)}[engine]
    assert (plain.stored_bytes - coded.stored_bytes) / saved == pytest.approx(copies[0])
    assert (plain.host_bytes - coded.host_bytes) / saved == pytest.approx(copies[1])
    assert coded.sequences == plain.sequences and coded.state_bytes == plain.state_bytes


def test_every_figure_of_a_sequence_of_mlx_follows_by_hand() -> None:
    """Two layers of four 8x4 states and one softmax layer, 300 tokens in cells of 256."""
    caches = arithmetic.CacheModel((arithmetic.StateLayers(2, 4, 8, 4, 4, 4),), 4, 1, 2, 2 * 16)
    settings = arithmetic.Settings(memory=10**6, context=300, coded_share=0.25)
    state, inputs, token = 2 * 4 * 8 * 4, 2 * 3 * (4 * 8 + 4 * 4), 2 * 2 * 16 * 2
    coded = state * 4 // 4 + inputs
    assert arithmetic.arrays_of_sequences(caches, settings) == arithmetic.Fit(
        sequences=10**6 // (4 * state + 2 * inputs + 512 * token),
        states=1,
        state_bytes=4 * state + 2 * inputs,
        token_bytes=token,
        block_size=256,
        blocks=0,
        requests=0,
        shortest_prefix=1,
        block_bytes=coded + 256 * token,
        stored_bytes=coded + 512 * token,
        host_bytes=0,
        transfer_bytes=coded + 300 * token,
    )
    uncached = replace(settings, prefix_caching=False)
    assert arithmetic.arrays_of_sequences(caches, uncached).shortest_prefix == 0


def test_users_figures_follow_from_their_settings() -> None:
    """Public reports about Qwen3.5-27B and its like; docs/capacity.md has the table."""
    caches = recorded_model({"model": "Qwen3.5-27B", "cut": {}})
    serving = arithmetic.Settings(memory=int(14.6 * 2**30), context=4096, kv_bytes=1)
    slots = sglang(caches, serving)  # SGLang #38846: 47 slots, capped to 9
    assert (slots.blocks, slots.sequences) == (47, 9)
    assert sglang(caches, replace(serving, memory=11 * 2**30)).sequences == 7  # #40706
    slot = llamacpp(caches, serving)  # llama.cpp #27211
    assert slot.stored_bytes / 2**20 == pytest.approx(149.6, abs=0.05)
    assert slot.host_bytes / 2**30 == pytest.approx(4.7, abs=0.05)
    convolution = 48 * 3 * (2 * 16 + 48) * 128 * 2
    keys_and_values = 4096 * 16 * 2 * 4 * 256
    moved = 48 * 48 * 128 * 128 * 4 + convolution + keys_and_values
    for engine in (vllm, sglang):
        assert engine(caches, serving).transfer_bytes == moved
    gains = []
    for context in (512, 32768):  # vLLM #55196: 1.00x and, on another model, 1.84x
        short = replace(serving, memory=40 * 2**30, context=context)
        halved, full = vllm(caches, short), replace(short, kv_bytes=2)
        gains.append(halved.sequences / vllm(caches, full).sequences)
    assert gains == [pytest.approx(1.0, abs=0.01), pytest.approx(1.84, abs=0.1)]
    drafts = replace(serving, memory=3 * 2**30, speculative=3)  # vLLM #55533: about 3
    assert vllm(caches, drafts).sequences == pytest.approx(3, abs=0.3)


def test_replayed_inputs_take_two_parts_below_float32() -> None:
    """SGLang: 16 inputs of each of 48 layers; 48 values and 16 keys of 128, and 48 gates."""
    caches = recorded_model({"model": "Qwen3.5-27B", "cut": {}})
    for size, parts in ((2, 2), (4, 1)):
        serving = arithmetic.Settings(memory=1, context=1, conv_bytes=size)
        inputs = parts * (48 + 16) * 128 * size + 48 * 4
        assert sglang_ring_bytes(caches, serving) == 48 * 16 * inputs


@pytest.mark.parametrize(("options", "value"), load_cases("serving"))
def test_settings_out_of_bounds_are_refused(options: dict[str, Any], value: str) -> None:
    with pytest.raises(st.StatetrimError, match=re.escape(value)):
        ServingOptions(**options)


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


def test_widths_by_layer_of_one_copied_group_on_two_devices(checkpoint: Load) -> None:
    """vLLM copies the only group of Mamba-2 to every device."""
    model = st.open(checkpoint("nemotron_h"))
    widths = ((8, 8),) * len(model.geometry.layers)
    one_group = replace(model.geometry, num_k_heads=1, widths=widths)
    settings = replace(settings_for(model, ServingOptions(engine="vllm")), devices=2)
    assert Paging.of(cache_model(model, one_group), one_group, settings).layout([(8, 8)])


def test_a_list_where_numbers_of_layers_belong(checkpoint: Load) -> None:
    model = st.open(checkpoint("qwen3_5_text"))
    model.config["ple_layer_ids"] = [[1], {"a": 1}]
    assert cache_model(model, model.geometry).states


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


@pytest.mark.parametrize("field", ["text_config", "llm_config"])
def test_the_text_model_of_an_omni_model_is_read_under_both_names(field: str) -> None:
    omni = tiny.CONFIGS["nemotron_h_omni"]
    text = {
        **omni["text_config"], "model_type": "nemotron_h", "mamba_ssm_cache_dtype": "float16",
        "num_nextn_predict_layers": 3,
    }  # fmt: skip
    model = raw.recorded({"model_type": "nemotron_h_omni", field: text})
    assert default_state_dtype(find_engine("vllm"), model) == "float16"
    assert cache_model(model, model.geometry).draft_layers == 3


def test_what_is_not_known_is_not_guessed() -> None:
    geometry = st.Geometry((0,), 1, 1, 1, 1)
    assert kv_cache_size({"model_type": "glm5_next_text"}, geometry) is None
    assert kv_cache_size({"model_type": "gla", "attn": {"layers": [1]}}, geometry) is None
    assert kv_cache_size({"model_type": "delta_net"}, geometry) == KVCacheSize(0, 0)
