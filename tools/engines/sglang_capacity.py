"""Record the state slots, requests and tokens of SGLang's pools, by its own sizing code.

    just engines DIRECTORY

Runs in an environment with SGLang. Nothing is allocated: the methods that size the pools run on an
object that has only what they read. The configs are those of the calculator's page.
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.machinery
import json
import random
import sys
from importlib.metadata import version
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import torch
import transformers.utils.import_utils as available
from in_vllm.layers_of_configs import draft_layers, head_cases, layer_kinds

GIB = 2**30
SETTINGS = 350
WITH_HEADS = 30  # more, of head cuts
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "fp8": torch.float8_e4m3fn}
TYPES = ("qwen3_next", "nemotron_h", "falcon_h1", "granitemoehybrid", "kimi_linear")


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for packages that SGLang imports and pool sizing does not use."""

    packages = ("torchvision", "sentencepiece", "gguf")

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] in self.packages:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> ModuleType:
        module = MagicMock(name=spec.name)
        module.__path__, module.__spec__, module.__name__ = [], spec, spec.name
        return module

    def exec_module(self, module: ModuleType) -> None:
        pass


available.is_torchvision_available()  # remembers the truth before the stand-in exists
available.is_sentencepiece_available()
sys.meta_path.append(Absent())

from sglang.srt.configs import mamba_utils  # noqa: E402
from sglang.srt.mem_cache import kv_cache_configurator as sizing  # noqa: E402
from sglang.srt.model_executor import pool_configurator as pools  # noqa: E402


def cache_params(config: dict[str, Any], case: dict[str, Any]) -> Any:
    """SGLang's description of the state, from the config fields that its config classes read."""
    state = mamba_utils.Mamba2StateDType(conv=torch.bfloat16, temporal=DTYPES[case["state"]])
    layers = [i for i, kind in enumerate(layer_kinds(config)) if kind in ("state", "both")]
    if config["model_type"] == "kimi_linear":
        section = config["linear_attn_config"]
        shape = mamba_utils.KimiLinearStateShape.create(
            tp_world_size=case["devices"],
            num_heads=section["num_heads"],
            head_dim=section["head_dim"],
            conv_kernel_size=section["short_conv_kernel_size"],
        )
        return mamba_utils.KimiLinearCacheParams(shape=shape, layers=layers, dtype=state)
    names = {
        "qwen3_next": ("linear_num_value_heads", "linear_value_head_dim", "linear_num_key_heads",
                       "linear_key_head_dim", "linear_conv_kernel_dim"),
        "nemotron_h": ("mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size",
                       "conv_kernel"),
    }.get(config["model_type"], ("mamba_n_heads", "mamba_d_head", "mamba_n_groups",
                                 "mamba_d_state", "mamba_d_conv"))  # fmt: skip
    heads, head_dim, groups, state_size, conv_kernel = (config[name] for name in names)
    shape = mamba_utils.Mamba2StateShape.create(
        tp_world_size=case["devices"],
        intermediate_size=heads * head_dim,
        n_groups=groups,
        num_heads=heads,
        head_dim=head_dim,
        state_size=state_size,
        conv_kernel=conv_kernel,
    )
    return mamba_utils.Mamba2CacheParams(shape=shape, layers=layers, dtype=state)


def put_settings(case: dict[str, Any], drafts: int | None) -> Any:
    """Let SGLang's modules read the settings of the case; returns what they write the slots to."""
    schedule = SimpleNamespace(
        mamba_full_memory_ratio=case["state_ratio"],
        max_mamba_cache_size=None,
        max_running_requests=48 if drafts else None,  # arg_groups/speculative_hook.py
        disable_overlap_schedule=False,
        max_total_tokens=None,
        page_size=1,
    )
    mamba = SimpleNamespace(
        enable_mamba_extra_buffer=case["prefix_caching"],
        enable_mamba_extra_buffer_lazy=False,
        enable_linear_replayssm_spec=case["replay"],
        linear_replayssm_cache_len=16,
    )
    bags = {
        "get_schedule": schedule,
        "get_memory": SimpleNamespace(
            disable_radix_cache=not case["prefix_caching"], enable_hisparse=False
        ),
        "get_exec": SimpleNamespace(mamba=mamba),
        "get_spec": SimpleNamespace(speculative_num_draft_tokens=drafts),
        "get_parallel": SimpleNamespace(attn_tp_size=case["devices"], attn_dcp_size=1, pp_size=1),
        "get_disagg": SimpleNamespace(disaggregation_mode="null"),
        "get_context": SimpleNamespace(
            override=lambda _name, **changes: vars(schedule).update(changes)
        ),
    }
    for name, bag in bags.items():
        for module in (sizing, pools):
            setattr(module, name, lambda bag=bag: bag)
    return schedule


def size_pools(case: dict[str, Any], config: dict[str, Any]) -> dict[str, int]:
    """Slots, requests and tokens of one case, computed by SGLang."""
    config = {**config, **case["cut"]}
    is_latent = "kv_lora_rank" in config
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    softmax = [i for i, kind in enumerate(layer_kinds(config)) if kind in ("softmax", "both")]
    drafts = case["speculative"] + 1 if case["speculative"] else None
    schedule = put_settings(case, drafts)
    params = SimpleNamespace(mamba2_cache_params=cache_params(config, case),
                             full_attention_layer_ids=softmax)  # fmt: skip
    pools.mambaish_config = lambda _: params
    pools.compute_page_shard_scratch_bytes = lambda *_, **__: 0
    kv_heads = max(1, config.get("num_key_value_heads", 1) // case["devices"])
    configurator = SimpleNamespace(
        mambaish_config=params,
        pp_size=1,
        attn_dp_size=1,
        hybrid_gdn_config=params if config["model_type"] == "qwen3_next" else None,
        hybrid_kda_config=None,
        extra_mamba_cache_bytes_per_req=0,
        fused_entry_bytes=lambda _: None,
        spec_algorithm=SimpleNamespace(
            is_none=lambda: drafts is None,
            is_eagle=lambda: drafts is not None,
            is_standalone=lambda: False,
            is_dflash_family=lambda: False,
        ),
        spec_aux_config=SimpleNamespace(eagle_draft_num_layers=draft_layers(config)),
        is_draft_worker=False,
        use_mla_backend=is_latent,
        kv_cache_dtype=DTYPES[case["kv"]],
        kv_cache_dtype_str=case["kv"],
        server_args=SimpleNamespace(enable_hisparse=True),  # only skips GLM's layer split
        layer_info=SimpleNamespace(start_layer=0, end_layer=10**6),
        model_config=SimpleNamespace(
            context_len=case["context"],
            hf_config=SimpleNamespace(architectures=[""], model_type=config["model_type"]),
            head_dim=width,
            v_head_dim=width,
            kv_lora_rank=config.get("kv_lora_rank"),
            qk_rope_head_dim=config.get("qk_rope_head_dim"),
            get_num_kv_heads=lambda *_: kv_heads,
        ),
    )
    code = sizing.KVCacheConfigurator
    configurator._calculate_mamba_ratio = lambda: code._calculate_mamba_ratio(configurator)
    rest = code._handle_max_mamba_cache(configurator, case["memory_gib"] * 1.0)
    pool = pools.DefaultPoolConfigurator(configurator)
    tokens = pool.calculate_pool_sizes(int(rest * GIB), 1).max_total_num_tokens
    return {
        "slots": schedule.max_mamba_cache_size,
        "requests": code.resolve_max_num_reqs(configurator, tokens),
        "tokens": tokens,
    }


def cases(models: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Random settings, spread evenly over the models; those that do not fit at all are left out."""
    draw, chosen = random.Random(1), []
    names = sorted(name for name, config in models.items() if config["model_type"] in TYPES)
    for i in range(SETTINGS):
        config = models[names[i % len(names)]]
        speculative = draw.choice((0, 0, 1, 3)) if draft_layers(config) else 0
        replay = bool(speculative) and config["model_type"] == "qwen3_next" and draw.random() < 0.4
        keys = {"linear_key_head_dim", "ssm_state_size", "mamba_d_state"} & set(config)
        cut = {name: config[name] // 2 for name in keys} if draw.random() < 0.5 else {}
        if cut and "linear_value_head_dim" in config:
            cut["linear_value_head_dim"] = config["linear_value_head_dim"] // 2
        chosen.append(
            {
                "model": names[i % len(names)],
                "cut": cut,
                "state": draw.choice(("float32", "bfloat16")),
                "kv": draw.choice(("bfloat16", "fp8")),
                "speculative": speculative,
                "prefix_caching": draw.random() < 0.8,
                "devices": draw.choice((1, 1, 2, 4)),
                "context": draw.choice((1024, 4096, 32768)),
                "memory_gib": draw.choice((16, 24, 40, 80)),
                "state_ratio": draw.choice((0.9, 0.9, 0.5, 2.0)),
                "replay": replay,
            }
        )
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("configs", type=Path, help="docs/calculator/configs.json")
    parser.add_argument("output", type=Path)
    options = parser.parse_args()
    models = json.loads(options.configs.read_text())
    results = []
    settings = cases(models)
    for case in [*settings, *head_cases(models, settings, WITH_HEADS)]:
        try:
            results.append(case | size_pools(case, models[case["model"]]))
        except RuntimeError:  # "Not enough GPU memory", "too small to serve any requests"
            results.append(case | {"slots": 0, "requests": 0, "tokens": 0})
    lines = ",\n".join(json.dumps(result) for result in results)
    options.output.write_text(f'{{"sglang": "{version("sglang")}",\n"cases": [{lines}]}}\n')
    print(len(results), "settings recorded")


if __name__ == "__main__":
    main()
