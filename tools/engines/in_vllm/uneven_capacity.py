"""Sequences that fit in vLLM's cache with widths by layer, wide layers in parts.

    just uneven-capacity ENGINES CONFIG.json ...

Runs in an environment with vLLM, for configs of Qwen3-Next and Qwen3.5 models. The plugin's
functions divide the layers into parts and choose their specs; vLLM's own functions compute page
sizes, groups, blocks and the "maximum concurrency" in its default cache layout. No model is loaded
and no cache allocated. The first layers stay whole, the others keep half of both axes.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import vllm
import vllm.utils.torch_utils
from statetrim_vllm.pages import Heads
from statetrim_vllm.specs import Pages, pages_of_a_sequence
from vllm.config import CacheConfig
from vllm.utils.math_utils import cdiv
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec

CONTEXTS = (1024, 8192, 32768)
MEMORY = 16 * 2**30
ALIGNMENT = 16  # tokens of a kernel block on a GPU
WHOLE = (1, 2, 4, 8, 12)


def settings(config: dict[str, Any], whole: int, state_dtype: str, drafts: int) -> Any:
    """As much of a VllmConfig as these functions read."""
    width = config["linear_key_head_dim"]
    linear = linear_layers(config)
    widths = {str(layer): (width // 2, width // 2) for layer in linear[whole:]}
    widths |= {str(layer): (width, width) for layer in linear[:whole]}
    text = SimpleNamespace(**config, statetrim_widths=widths)
    cache = CacheConfig(block_size=16, mamba_ssm_cache_dtype=state_dtype)
    cache.kv_cache_layout = "LBHNC"
    speculative = SimpleNamespace(
        num_speculative_tokens=drafts,
        use_eagle=lambda: False,
        use_eagle_block_drop=lambda: False,
    )
    return SimpleNamespace(
        cache_config=cache,
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=1, prefill_context_parallel_size=1, tensor_parallel_size=1
        ),
        speculative_config=speculative if drafts else None,
        attention_config=SimpleNamespace(hisparse_config=None),
        model_config=SimpleNamespace(
            max_model_len=CONTEXTS[0], hf_config=text, hf_text_config=text, dtype=torch.bfloat16
        ),
    )


def linear_layers(config: dict[str, Any]) -> list[int]:
    interval = config.get("full_attention_interval", 4)
    return [i for i in range(config["num_hidden_layers"]) if (i + 1) % interval]


def layer_specs(vllm_config: Any, pages: Pages, *, divided: bool) -> dict[str, Any]:
    """vLLM's cache spec of every layer and part, with the specs that the plugin would choose."""
    config = vllm_config.model_config.hf_text_config
    token = FullAttentionSpec(
        block_size=1,
        num_kv_heads=config.num_key_value_heads,
        head_size=config.head_dim,
        dtype=torch.bfloat16,
    )
    shapes = pages.shapes if divided else pages.shapes_of(max(pages.layers, key=pages.size))
    state = MambaSpec(
        shapes=shapes,
        dtypes=pages.dtypes,
        block_size=2**20,
        mamba_type=MambaAttentionBackendEnum.GDN_ATTN,
        num_speculative_blocks=pages.num_spec,
    )
    block = ALIGNMENT * cdiv(state.page_size_bytes, ALIGNMENT * token.page_size_bytes)
    state = replace(state, page_size_padded=block * token.page_size_bytes)
    drafts = getattr(config, "mtp_num_hidden_layers", 1) if pages.num_spec else 0
    softmax = set(range(config.num_hidden_layers + drafts)) - set(linear_layers(vars(config)))
    same = {f"layers.{i}": replace(token, block_size=block) for i in softmax}
    own = dict(same)
    for layer, (keys, values) in config.statetrim_widths.items():
        heads = Heads(config.linear_num_key_heads, config.linear_num_value_heads, keys, values)
        count = pages.parts(heads) if divided else 1
        part = heads.part(count)
        assert part is not None
        for index in range(count):
            name = f"layers.{layer}.part{index}"
            same[name] = state
            own[name] = replace(state, shapes=pages.shapes_of(part))
    pages_of = {id(specs): pages_of_a_sequence(vllm_config, specs) for specs in (same, own)}
    return same if pages_of[id(same)] <= pages_of[id(own)] else own


def capacity(vllm_config: Any, specs: dict[str, Any]) -> dict[str, Any]:
    groups = kv_cache_utils.get_kv_cache_groups(vllm_config, specs)
    config = kv_cache_utils.get_kv_cache_config_from_groups(vllm_config, groups, MEMORY)
    sequences = {}
    for context in CONTEXTS:
        vllm_config.model_config.max_model_len = context
        concurrency = kv_cache_utils.get_max_concurrency_for_kv_cache_config(vllm_config, config)
        sequences[str(context)] = round(concurrency, 1)
    return {"groups": len(groups), "blocks": config.num_blocks, "sequences": sequences}


def row(config: dict[str, Any], state: str, state_dtype: str, drafts: int) -> dict[str, Any]:
    named = {"original": len(linear_layers(config)), "uniform": 0}
    whole = named[state] if state in named else int(state.split()[0])
    vllm_config = settings(config, whole, state_dtype, drafts)
    pages = Pages.of(vllm_config)
    assert pages is not None
    specs = layer_specs(vllm_config, pages, divided="undivided" not in state)
    settings_of_row = {"state": state, "state_dtype": state_dtype, "speculative": drafts}
    return settings_of_row | capacity(vllm_config, specs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("configs", nargs="+", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    states = ["original", "1 whole, undivided", *(f"{n} whole" for n in WHOLE), "uniform"]
    models = {}
    for path in options.configs:
        content = json.loads(path.read_text())
        config = content.get("text_config", content)
        models[path.stem.removesuffix("_config")] = [
            row(config, state, state_dtype, drafts)
            for state_dtype in ("float32", "bfloat16")
            for drafts in (0, 3)
            for state in states
        ]
    result = {"vllm": vllm.__version__, "memory_gib": MEMORY / 2**30, "models": models}
    options.output.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
