"""Record how many sequences fit in vLLM, by its own functions, over a grid of settings.

    just capacity-grid ENGINES

Runs in an environment with vLLM; no model is loaded and no cache allocated. The model classes give
the shapes and dtypes of the state, the layers' own methods the specs, Platform the block size, and
kv_cache_utils groups, blocks and "maximum concurrency". statetrim is not imported. The configs are
those of the calculator's page: from the hub for Qwen and Nemotron, else the fields that matter.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import vllm
import vllm.utils.torch_utils
from layers_of_configs import draft_layers, layer_kinds
from vllm.config import CacheConfig
from vllm.model_executor.layers.mamba.abstract import MambaBase
from vllm.model_executor.layers.mamba.mamba_mixer2 import MambaMixer2
from vllm.model_executor.layers.mamba.mamba_utils import (
    MambaStateDtypeCalculator,
    MambaStateShapeCalculator,
)
from vllm.model_executor.models import ModelRegistry
from vllm.models.kimi_k3.nvidia.kda import KimiK3DeltaAttention
from vllm.platforms.interface import Platform
from vllm.v1.attention.backend import MultipleOf
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    get_kv_quant_mode,
)

CLASSES = {  # model type -> class that knows its state
    "qwen3_next": ("vllm.model_executor.models.qwen3_next", "Qwen3NextForCausalLM"),
    "nemotron_h": ("vllm.model_executor.models.nemotron_h", "NemotronHForCausalLM"),
    "falcon_h1": ("vllm.model_executor.models.falcon_h1", "FalconH1ForCausalLM"),
    "granitemoehybrid": (
        "vllm.model_executor.models.granitemoehybrid", "GraniteMoeHybridForCausalLM"),
    "olmo_hybrid": ("vllm.model_executor.models.olmo_hybrid", "OlmoHybridForCausalLM"),
    "kimi_linear": ("vllm.models.kimi_k3.nvidia.model", "KimiLinearForCausalLM"),
}  # fmt: skip
KDA_BACKENDS = ("triton", "flashkda")
SETTINGS = 450
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "fp8": torch.uint8}


class Qwen4Exp:
    """As models/qwen4_exp/nvidia/model.py, which does not import without torchvision."""

    @staticmethod
    def get_mamba_state_shape_from_config(vllm_config: Any) -> Any:
        return getattr(importlib.import_module(CLASSES["qwen3_next"][0]), CLASSES["qwen3_next"][1]
        ).get_mamba_state_shape_from_config(vllm_config)  # fmt: skip

    @staticmethod
    def get_mamba_state_dtype_from_config(vllm_config: Any) -> Any:
        cache = vllm_config.cache_config
        return MambaStateDtypeCalculator.gated_delta_net_state_dtype(
            torch.bfloat16, cache.mamba_cache_dtype, cache.mamba_ssm_cache_dtype
        )

    @staticmethod
    def ple_shape(vllm_config: Any) -> Any:
        config = vllm_config.model_config.hf_text_config
        return MambaStateShapeCalculator.short_conv_state_shape(
            tp_world_size=1,
            intermediate_size=config.hidden_size * config.hc_count,
            conv_kernel=(config.ple_conv_kernel_size - 1) * config.ngram_size + 1,
            num_spec=vllm_config.num_speculative_tokens,
        )

    @classmethod
    def get_mamba_specs_from_config(cls, vllm_config: Any) -> tuple[MambaSpec, ...]:
        shapes = cls.get_mamba_state_shape_from_config(vllm_config)
        dtypes = cls.get_mamba_state_dtype_from_config(vllm_config)
        ple = cls.ple_shape(vllm_config)
        return (
            MambaSpec(shapes=shapes, dtypes=dtypes, block_size=-1),
            MambaSpec(shapes=ple, dtypes=(torch.bfloat16,), block_size=-1, tp_replicated=True),
        )


class Mamba2Layer(MambaMixer2):  # their own get_kv_cache_spec, without weights
    mamba_type = MambaAttentionBackendEnum.MAMBA2
    get_state_shape = get_state_dtype = None


class KdaLayer(KimiK3DeltaAttention):
    mamba_type = MambaAttentionBackendEnum.GDN_ATTN
    get_state_shape = get_state_dtype = None


class DeltaLayer(MambaBase):
    mamba_type = MambaAttentionBackendEnum.GDN_ATTN
    get_state_shape = get_state_dtype = None


class PleLayer(MambaBase):
    mamba_type = MambaAttentionBackendEnum.SHORT_CONV
    is_kv_cache_tp_replicated = True
    get_state_shape = get_state_dtype = None


LAYERS = {
    "qwen3_next": DeltaLayer,
    "qwen4_exp_text": DeltaLayer,
    "olmo_hybrid": DeltaLayer,
    "kimi_linear": KdaLayer,
}


class Backend:  # an attention backend of kernel blocks of 16 tokens, without packing
    @staticmethod
    def get_supported_kernel_block_sizes() -> list[Any]:
        return [MultipleOf(16)]

    @staticmethod
    def customize_spec(spec: Any) -> Any:
        return spec


def namespace(case: dict[str, Any], config: dict[str, Any]) -> Any:
    """What vLLM's functions read of its config, for one case."""
    hf_config = SimpleNamespace(**config)
    heads = config.get("num_key_value_heads", 1)
    is_latent = "kv_lora_rank" in config
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    if is_latent:
        heads, width = 1, config["kv_lora_rank"] + config["qk_rope_head_dim"]
    cache = CacheConfig(
        block_size=16,
        cache_dtype="fp8" if case["kv"] == "fp8" else "auto",
        mamba_ssm_cache_dtype=case["state"],
        enable_prefix_caching=case["prefix_caching"],
        use_replayssm=case["replay"],
    )
    cache.kv_cache_layout = "LBHNC"
    cache.mamba_cache_mode = "align" if case["prefix_caching"] else "none"
    cache.mamba_block_size = case["context"]
    tokens = case["speculative"]
    return SimpleNamespace(
        cache_config=cache,
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
            tensor_parallel_size=case["devices"],
        ),
        speculative_config=SimpleNamespace(
            num_speculative_tokens=tokens,
            method="mtp",
            use_eagle=lambda: True,
            use_eagle_block_drop=lambda: True,
        )
        if tokens
        else None,
        num_speculative_tokens=tokens,
        attention_config=SimpleNamespace(hisparse_config=None),
        mamba_config=SimpleNamespace(backend="triton"),
        model_config=SimpleNamespace(
            max_model_len=case["context"],
            hf_config=hf_config,
            hf_text_config=hf_config,
            dtype=torch.bfloat16,
            use_mla=is_latent,
            architecture=config["model_type"],
            get_num_kv_heads=lambda parallel: max(1, heads // parallel.tensor_parallel_size),
            get_head_size=lambda: width,
        ),
    )


def state_layer(base: type[Any], case: dict[str, Any], shapes: Any, dtypes: Any) -> Any:
    """A linear layer that has only what its get_kv_cache_spec reads."""
    base.__abstractmethods__ = frozenset()
    layer = base.__new__(base)
    object.__setattr__(layer, "get_state_shape", lambda: shapes)
    object.__setattr__(layer, "get_state_dtype", lambda: dtypes)
    object.__setattr__(layer, "kda_prefill_backend", case.get("kda_backend"))
    return layer


def sequences(case: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """Block size, blocks, groups and concurrency of one case, computed by vLLM."""
    config = {**config, **case["cut"]}
    vllm_config = namespace(case, config)
    model_class = Qwen4Exp
    if config["model_type"] in CLASSES:
        module, name = CLASSES[config["model_type"]]
        model_class = getattr(importlib.import_module(module), name)
    ModelRegistry.resolve_model_cls = lambda *_, **__: (model_class, config["model_type"])
    Platform._find_non_ssm_backends = classmethod(lambda *_: [Backend])
    Platform._align_hybrid_block_size(vllm_config, Backend)
    shapes = model_class.get_mamba_state_shape_from_config(vllm_config)
    dtypes = model_class.get_mamba_state_dtype_from_config(vllm_config)
    cache, model = vllm_config.cache_config, vllm_config.model_config
    base = LAYERS.get(config["model_type"], Mamba2Layer)
    state_spec = state_layer(base, case, shapes, dtypes).get_kv_cache_spec(vllm_config)
    spec_class = MLAAttentionSpec if model.use_mla else FullAttentionSpec
    softmax_spec = spec_class(
        block_size=cache.block_size,
        num_kv_heads=model.get_num_kv_heads(vllm_config.parallel_config),
        head_size=model.get_head_size(),
        dtype=DTYPES[case["kv"]],
        kv_quant_mode=get_kv_quant_mode(cache.cache_dtype),
    )
    specs = {}
    for i, kind in enumerate(layer_kinds(config)):
        if kind in ("state", "both"):
            specs[f"layers.{i}.mixer"] = state_spec
        if kind in ("softmax", "both"):
            specs[f"layers.{i}.attn"] = softmax_spec
    for i in config.get("ple_layer_ids", ()):
        ple = state_layer(PleLayer, case, Qwen4Exp.ple_shape(vllm_config), (torch.bfloat16,))
        specs[f"layers.{i}.ple"] = ple.get_kv_cache_spec(vllm_config)
    for i in range(draft_layers(config) if case["speculative"] else 0):
        specs[f"mtp.{i}.attn"] = softmax_spec
    groups = kv_cache_utils.get_kv_cache_groups(vllm_config, specs)
    memory = case["memory_gib"] * 2**30
    laid_out = kv_cache_utils.get_kv_cache_config_from_groups(vllm_config, groups, memory)
    concurrency = kv_cache_utils.get_max_concurrency_for_kv_cache_config(vllm_config, laid_out)
    return {
        "block_size": cache.block_size,
        "blocks": laid_out.num_blocks,
        "groups": len(groups),
        "sequences": round(concurrency, 6),
    }


def cuts(config: dict[str, Any]) -> list[dict[str, int]]:
    """Config fields of the original, of half of the keys and of half of both axes."""
    keys = {"linear_key_head_dim", "ssm_state_size", "mamba_d_state"} & set(config)
    values = {"linear_value_head_dim"} & set(config)
    halves = {name: config[name] // 2 for name in keys}
    both = halves | {name: config[name] // 2 for name in values}
    return [{}, halves, both] if halves else [{}]


def cases(models: dict[str, dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """`count` random settings, spread evenly over the models."""
    draw, chosen = random.Random(0), []
    names = sorted(models)
    for i in range(count):
        name = names[i % len(names)]
        config = models[name]
        speculative = draw.choice((0, 0, 1, 3, 5)) if draft_layers(config) else 0
        replay = config["model_type"] == "nemotron_h" and not speculative and draw.random() < 0.2
        heads = config.get("linear_num_value_heads", 8)
        devices = [number for number in (1, 1, 2, 4, 8) if heads % number == 0]
        case = {
            "model": name,
            "cut": draw.choice(cuts(config)),
            "state": draw.choice(("float32", "bfloat16")),
            "kv": draw.choice(("bfloat16", "fp8")),
            "speculative": speculative,
            "prefix_caching": draw.random() < 0.7,
            "devices": draw.choice(devices),
            "context": draw.choice((512, 1024, 4096, 8192, 32768, 100_000)),
            "memory_gib": draw.choice((8, 16, 24, 40, 80, 100)),
            "replay": replay,
        }
        if config["model_type"] == "kimi_linear":
            case["kda_backend"] = draw.choice(KDA_BACKENDS)
        chosen.append(case)
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("configs", type=Path, help="docs/calculator/configs.json")
    parser.add_argument("output", type=Path)
    options = parser.parse_args()
    models = json.loads(options.configs.read_text())
    results = []
    for case in cases(models, SETTINGS):
        results.append(case | sequences(case, models[case["model"]]))
    lines = ",\n".join(json.dumps(result) for result in results)
    options.output.write_text(f'{{"vllm": "{vllm.__version__}",\n"cases": [{lines}]}}\n')
    print(len(results), "settings recorded for", len(models), "models")


if __name__ == "__main__":
    main()
