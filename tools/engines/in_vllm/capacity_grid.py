"""Record how many sequences fit in vLLM, by its own functions, over a grid of settings.

    just engines DIRECTORY

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
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import vllm
import vllm.utils.torch_utils
from layers_of_configs import draft_layers, head_cases, layer_kinds
from scheduling import shortest_cached_prefix
from tqdm import tqdm
from vllm.config import CacheConfig, DeviceConfig, SchedulerConfig, VllmConfig
from vllm.model_executor.layers.mamba.gdn.olmo_gdn_linear_attn import (
    OlmoHybridGatedDeltaNetAttention,
)
from vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn import QwenGatedDeltaNetAttention
from vllm.model_executor.layers.mamba.mamba_mixer2 import MambaMixer2
from vllm.model_executor.layers.mamba.mamba_utils import (
    MambaStateDtypeCalculator,
    MambaStateShapeCalculator,
)
from vllm.model_executor.models import ModelRegistry
from vllm.models.kimi_k3.nvidia.kda import KimiK3DeltaAttention
from vllm.models.qwen4_exp.nvidia.ple_layer import Qwen4ExpPLELayer
from vllm.platforms.interface import Platform
from vllm.v1.attention.backend import MultipleOf
from vllm.v1.attention.backends.gdn_attn import FLASHINFER_GDN_CHECKPOINT_ALIGNMENT
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum
from vllm.v1.core import kv_cache_planning, kv_cache_utils
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
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
OTHER_DRAFTERS = (
    "use_multi_module_mtp", "use_dspark", "use_dflash", "uses_draft_model",
    "uses_dynamic_speculative_decoding",
)  # fmt: skip
GDN_BACKENDS = ("triton", "flashinfer")
FLASHINFER = ("qwen3_next", "qwen4_exp_text")
WITH_PREFIX = 300  # the last settings, of which the shortest cached prefix is searched too
SETTINGS = 450 + WITH_PREFIX
WITH_HEADS = 30  # more, of head cuts
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


class QwenLayer(QwenGatedDeltaNetAttention):
    mamba_type = MambaAttentionBackendEnum.GDN_ATTN
    get_state_shape = get_state_dtype = None


class OlmoLayer(OlmoHybridGatedDeltaNetAttention):
    mamba_type = MambaAttentionBackendEnum.GDN_ATTN
    get_state_shape = get_state_dtype = None


class PleLayer(Qwen4ExpPLELayer):
    mamba_type = MambaAttentionBackendEnum.SHORT_CONV
    get_state_shape = get_state_dtype = None


LAYERS = {
    "qwen3_next": QwenLayer,
    "qwen4_exp_text": QwenLayer,
    "olmo_hybrid": OlmoLayer,
    "kimi_linear": KdaLayer,
}


class Backend:  # an attention backend of kernel blocks of 16 tokens, without packing
    @staticmethod
    def get_supported_kernel_block_sizes() -> list[Any]:
        return [MultipleOf(16)]

    @staticmethod
    def customize_spec(spec: Any) -> Any:
        return spec


class Fields(SimpleNamespace):
    """A config of vLLM, as far as it is set: nothing that it lacks is used."""

    def __getattr__(self, name: str) -> None:
        return None


def serving_config(case: dict[str, Any], config: dict[str, Any]) -> VllmConfig:
    """vLLM's config of one case; the model's own has what vLLM's functions read."""
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
    )
    scheduler = SchedulerConfig(
        max_model_len=case["context"],
        is_encoder_decoder=False,
        max_num_batched_tokens=8192,
        async_scheduling=False,
    )
    settings = VllmConfig(
        device_config=DeviceConfig(device="cpu"), cache_config=cache, scheduler_config=scheduler
    )
    settings.scheduler_config.disable_hybrid_kv_cache_manager = False
    cache.use_replayssm = case["replay"]
    cache.kv_cache_layout = "LBHNC"
    cache.mamba_cache_mode = "align" if case["prefix_caching"] else "none"
    cache.mamba_block_size = case["context"]
    settings.parallel_config.tensor_parallel_size = case["devices"]
    settings.mamba_config = SimpleNamespace(backend="triton")
    if case["speculative"]:
        settings.speculative_config = Fields(
            num_speculative_tokens=case["speculative"],
            method="mtp",
            max_num_new_slots_for_drafting=0,
            use_eagle=lambda: True,
            use_eagle_block_drop=lambda: True,
            needs_eagle_block_drop=lambda: True,
            **dict.fromkeys(OTHER_DRAFTERS, lambda: False),
        )
    settings.model_config = Fields(
        max_model_len=case["context"],
        hf_config=hf_config,
        hf_text_config=hf_config,
        dtype=torch.bfloat16,
        runner_type="generate",
        skip_tokenizer_init=True,
        use_mla=is_latent,
        architecture=config["model_type"],
        get_num_kv_heads=lambda parallel: max(1, heads // parallel.tensor_parallel_size),
        get_head_size=lambda: width,
    )
    return settings


def state_layers(
    case: dict[str, Any], config: dict[str, Any], model_class: Any, settings: VllmConfig
) -> dict[str, Any]:
    """Name -> a linear or PLE layer that has only what its own get_kv_cache_spec reads."""
    shapes = model_class.get_mamba_state_shape_from_config(settings)
    dtypes = model_class.get_mamba_state_dtype_from_config(settings)
    base = LAYERS.get(config["model_type"], Mamba2Layer)
    linear = [i for i, kind in enumerate(layer_kinds(config)) if kind in ("state", "both")]
    layers = {f"layers.{i}.mixer": bare_layer(base, case, settings, shapes, dtypes) for i in linear}
    for i in config.get("ple_layer_ids", ()):
        ple = Qwen4Exp.ple_shape(settings)
        layers[f"layers.{i}.ple"] = bare_layer(PleLayer, case, settings, ple, (torch.bfloat16,))
    return layers


def bare_layer(
    base: type[Any], case: dict[str, Any], settings: VllmConfig, shapes: Any, dtypes: Any
) -> Any:
    base.__abstractmethods__ = frozenset()
    layer = base.__new__(base)
    has_flashinfer = case.get("gdn_backend") == "flashinfer" and case["prefix_caching"]
    alignment = FLASHINFER_GDN_CHECKPOINT_ALIGNMENT if has_flashinfer else None
    for name, value in {
        "get_state_shape": lambda: shapes,
        "get_state_dtype": lambda: dtypes,
        "kda_prefill_backend": case.get("kda_backend"),
        "vllm_config": settings,
        "cache_config": settings.cache_config,
        "conv_state_len": 9,
        "_checkpoint_alignment": alignment,
    }.items():
        object.__setattr__(layer, name, value)
    return layer


def laid_out(case: dict[str, Any], config: dict[str, Any]) -> tuple[VllmConfig, KVCacheConfig]:
    """vLLM's config and cache of one case, computed by vLLM."""
    config = {**config, **case["cut"]}
    settings = serving_config(case, config)
    model_class = Qwen4Exp
    if config["model_type"] in CLASSES:
        module, name = CLASSES[config["model_type"]]
        model_class = getattr(importlib.import_module(module), name)
    ModelRegistry.resolve_model_cls = lambda *_, **__: (model_class, config["model_type"])
    Platform._find_non_ssm_backends = classmethod(lambda *_: [Backend])
    layers = state_layers(case, config, model_class, settings)
    settings.compilation_config.static_forward_context = layers
    Platform._align_hybrid_block_size(settings, Backend)
    cache, model = settings.cache_config, settings.model_config
    specs = {name: layer.get_kv_cache_spec(settings) for name, layer in layers.items()}
    spec_class = MLAAttentionSpec if model.use_mla else FullAttentionSpec
    softmax_spec = spec_class(
        block_size=cache.block_size,
        num_kv_heads=model.get_num_kv_heads(settings.parallel_config),
        head_size=model.get_head_size(),
        dtype=DTYPES[case["kv"]],
        kv_quant_mode=get_kv_quant_mode(cache.cache_dtype),
    )
    for i, kind in enumerate(layer_kinds(config)):
        if kind in ("softmax", "both"):
            specs[f"layers.{i}.attn"] = softmax_spec
    for i in range(draft_layers(config) if case["speculative"] else 0):
        specs[f"mtp.{i}.attn"] = replace(softmax_spec, is_draft=True)
    groups = kv_cache_planning.get_kv_cache_groups(settings, specs)
    memory = case["memory_gib"] * 2**30
    return settings, kv_cache_planning.get_kv_cache_config_from_groups(settings, groups, memory)


def figures(case: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """Block size, blocks, groups and concurrency of one case, and its shortest cached prefix."""
    settings, cache = laid_out(case, config)
    block_size = settings.cache_config.block_size
    concurrency = kv_cache_utils.get_max_concurrency_for_kv_cache_config(settings, cache)
    fields = {
        "block_size": block_size,
        "blocks": cache.num_blocks,
        "groups": len(cache.kv_cache_groups),
        "sequences": round(concurrency, 6),
    }
    if case.get("with_prefix"):
        settings.model_config.max_model_len = 2**20  # the context limits prompts, not blocks
        many = replace(cache, num_blocks=1000)  # the rule does not depend on their number
        fields["prefix"] = shortest_cached_prefix(settings, many, 3 * block_size)
    return fields


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
        if i >= count - WITH_PREFIX:
            case["with_prefix"] = True
            if config["model_type"] in FLASHINFER and not case["cut"]:  # FlashInfer takes 128x128
                case["gdn_backend"] = draw.choice(GDN_BACKENDS)
        chosen.append(case)
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("configs", type=Path, help="docs/calculator/configs.json")
    parser.add_argument("output", type=Path)
    options = parser.parse_args()
    models = json.loads(options.configs.read_text())
    results = []
    settings = cases(models, SETTINGS)
    for case in tqdm([*settings, *head_cases(models, settings, WITH_HEADS)]):
        results.append(case | figures(case, models[case["model"]]))
    lines = ",\n".join(json.dumps(result) for result in results)
    options.output.write_text(f'{{"vllm": "{vllm.__version__}",\n"cases": [{lines}]}}\n')
    print(len(results), "settings recorded for", len(models), "models")


if __name__ == "__main__":
    main()
