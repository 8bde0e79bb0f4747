"""Sequences that fit in vLLM's cache: the original, all layers pruned, or widths by layer.

    just uneven-capacity ENGINES CONFIG.json ...

Runs in an environment with vLLM, for configs of Qwen3-Next and Qwen3.5 models. vLLM's own functions
compute the specs of all layers, their groups, the blocks and the "maximum concurrency"; no model is
loaded and no cache allocated. Pruned layers keep half of both axes, a quarter of their bytes. BLHNC
is a block-outermost layout, which packs pages of several sizes; LBHNC pads all to the widest.
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
from vllm.config import CacheConfig
from vllm.model_executor.layers.mamba.mamba_utils import MambaStateShapeCalculator
from vllm.utils.math_utils import cdiv
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec

CONTEXTS = (1024, 8192, 32768)
MEMORY = 16 * 2**30
ALIGNMENT = 16  # tokens of a kernel block on a GPU


def widths(config: dict[str, Any], kind: str) -> dict[int, int]:
    """Linear layer -> width of both axes."""
    interval = config.get("full_attention_interval", 4)
    linear = [i for i in range(config["num_hidden_layers"]) if (i + 1) % interval]
    full = config["linear_key_head_dim"]
    if kind == "original":
        return dict.fromkeys(linear, full)
    full_counts = {"uniform": 0, "first layer whole": 1, "a third whole": round(len(linear) / 3)}
    full_layers = linear[: full_counts[kind]]
    return {i: full if i in full_layers else full // 2 for i in linear}


def layer_specs(config: dict[str, Any], sides: dict[int, int], *, packed: bool) -> dict[str, Any]:
    """vLLM's cache spec of every layer, with page sizes aligned as its platform does."""
    token = FullAttentionSpec(
        block_size=1,
        num_kv_heads=config["num_key_value_heads"],
        head_size=config["head_dim"],
        dtype=torch.bfloat16,
    )
    states = {i: state_spec(config, side) for i, side in sides.items()}
    widest = max(spec.page_size_bytes for spec in states.values())
    block = ALIGNMENT * cdiv(widest, ALIGNMENT * token.page_size_bytes)
    page = block * token.page_size_bytes
    by_layer: dict[str, Any] = {}
    for i in range(config["num_hidden_layers"]):
        if i not in states:
            by_layer[f"layers.{i}"] = replace(token, block_size=block)
        else:
            narrow = packed and states[i].page_size_bytes < widest
            by_layer[f"layers.{i}"] = replace(states[i], page_size_padded=None if narrow else page)
    return by_layer


def state_spec(config: dict[str, Any], side: int) -> MambaSpec:
    shapes = MambaStateShapeCalculator.gated_delta_net_state_shape(
        1,
        config["linear_num_key_heads"],
        config["linear_num_value_heads"],
        side,
        side,
        config["linear_conv_kernel_dim"],
        0,
    )
    return MambaSpec(
        shapes=shapes,
        dtypes=(torch.bfloat16, torch.float32),
        block_size=2**20,
        mamba_type=MambaAttentionBackendEnum.GDN_ATTN,
    )


def capacity(config: dict[str, Any], kind: str, layout: str) -> dict[str, Any]:
    """Groups, blocks and sequences by context, computed by vLLM's functions."""
    packed = layout == "BLHNC"
    by_layer = layer_specs(config, widths(config, kind), packed=packed)
    cache = CacheConfig(block_size=16)
    cache.kv_cache_layout = layout
    vllm_config: Any = SimpleNamespace(
        cache_config=cache,
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=1, prefill_context_parallel_size=1, tensor_parallel_size=1
        ),
        speculative_config=None,
        attention_config=SimpleNamespace(hisparse_config=None),
        model_config=SimpleNamespace(max_model_len=max(CONTEXTS), hf_config=None),
    )
    groups = kv_cache_utils.get_kv_cache_groups(vllm_config, by_layer)
    cache_config = kv_cache_utils.get_kv_cache_config_from_groups(vllm_config, groups, MEMORY)
    sequences = {}
    for context in CONTEXTS:
        vllm_config.model_config.max_model_len = context
        concurrency = kv_cache_utils.get_max_concurrency_for_kv_cache_config(
            vllm_config, cache_config
        )
        sequences[str(context)] = round(concurrency, 1)
    return {
        "kind": kind,
        "layout": layout,
        "groups": len(groups),
        "blocks": cache_config.num_blocks,
        "sequences": sequences,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("configs", nargs="+", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    models = {}
    for path in options.configs:
        content = json.loads(path.read_text())
        config = content.get("text_config", content)
        models[path.stem.removesuffix("_config")] = [
            capacity(config, kind, layout)
            for layout in ("LBHNC", "BLHNC")
            for kind in ("original", "uniform", "a third whole", "first layer whole")
        ]
    result = {"vllm": vllm.__version__, "memory_gib": MEMORY / 2**30, "models": models}
    options.output.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
