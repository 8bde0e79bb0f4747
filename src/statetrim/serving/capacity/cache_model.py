"""What the calculator needs to know of a checkpoint: the layers that cache something."""

from collections import Counter
from typing import Any

from ...errors import StatetrimError
from ...families.contract import int_field, text_config
from ...families.kimi_linear import KimiLinear
from ...families.mamba2 import Mamba2
from ...geometry import MAX_CHANNELS, MAX_LAYERS, Geometry
from ...storage.checkpoint import Checkpoint
from ..state_size import DTYPE_BYTES, served_dtype
from .arithmetic import CacheModel, StateLayers


def cache_model(model: Checkpoint, geometry: Geometry) -> CacheModel:
    """The caches of `model` with the state of `geometry`. Raises StatetrimError if the size of its
    KV cache is not known."""
    config = text_config(model.config)
    kv_cache = model.family.kv_cache_size(model.config, model.geometry)
    if kv_cache is None:
        raise StatetrimError(
            f"the KV cache of {model.config.get('model_type')} is not known, so the number of "
            "sequences that fit cannot be computed; leave out --memory-gib"
        )
    kv_heads = 1 if kv_cache.numel % kv_cache.heads else kv_cache.heads  # with an indexer's keys
    is_mamba2 = isinstance(model.family, Mamba2)
    ple_layer_ids = config.get("ple_layer_ids")
    ple_layers = 0
    if isinstance(ple_layer_ids, list) and len(ple_layer_ids) <= MAX_LAYERS:
        ple_layers = len(set(ple_layer_ids))
    streams = int_field(config, "hc_count", default=1, maximum=1024)
    return CacheModel(
        states=state_layers(geometry),
        conv_width=max(geometry.conv_width, 1),
        softmax_layers=kv_cache.layers,
        kv_heads=kv_heads,
        kv_numel=kv_cache.numel // kv_heads,
        latent=kv_cache.latent,
        shared_groups=is_mamba2,
        checkpoint_states=int(is_mamba2 or _has_bounded_kda_gate(model)),
        draft_layers=_draft_layers(config),
        ple_layers=ple_layers,
        ple_inputs=_ple_inputs(config) if ple_layers else 0,
        ple_width=streams * int_field(config, "hidden_size", default=2048) if ple_layers else 0,
    )


def state_layers(geometry: Geometry) -> tuple[StateLayers, ...]:
    """The linear layers, one entry per shape, the most channels first."""
    groups = []
    for (keys, values), layers in sorted(Counter(geometry.shapes.values()).items(), reverse=True):
        groups.append(
            StateLayers(
                layers=layers,
                heads=geometry.num_v_heads * geometry.copies,
                keys=keys,
                values=values,
                conv_key_heads=geometry.conv_key_heads,
                conv_value_heads=geometry.conv_value_heads,
            )
        )
    return tuple(groups)


def default_state_dtype(engine: str, model: Checkpoint) -> str:
    """The dtype of the state without a flag.

    vLLM 0.32.0: models/config.py takes the field of Qwen3.5 and Nemotron-H, KDA float32, and other
    models the dtype of the model. SGLang 0.5.23: configs/mamba_utils.py, the config's field, else
    float32. llama.cpp and MLX-LM always use float32.
    """
    config = text_config(model.config)
    if engine == "sglang":
        return _known_dtype(config.get("mamba_ssm_dtype"), "float32")
    if engine != "vllm" or isinstance(model.family, KimiLinear):
        return "float32"
    if config.get("model_type") == "nemotron_h":
        return _known_dtype(config.get("mamba_ssm_cache_dtype"), "float32")
    return _known_dtype(config.get("mamba_ssm_dtype"), served_dtype(model))


def _known_dtype(name: object, default: str) -> str:
    return name if isinstance(name, str) and name in DTYPE_BYTES else default


def _has_bounded_kda_gate(model: Checkpoint) -> bool:
    """Whether vLLM prefills with FlashKDA, which keeps one more state, on Hopper and Blackwell
    (0.32.0: models/kimi_k3/nvidia/kda.py, resolve_kda_prefill_backend)."""
    section = text_config(model.config).get("linear_attn_config")
    bound = section.get("gate_lower_bound") if isinstance(section, dict) else None
    is_kda = isinstance(model.family, KimiLinear)
    return is_kda and bound is not None and model.geometry.head_k_dim == 128


def _draft_layers(config: dict[str, Any]) -> int:
    """Softmax layers of the MTP head: vLLM 0.32.0, models/qwen3_5_mtp.py and nemotron_h_mtp.py."""
    if not config.get("num_nextn_predict_layers") and not config.get("mtp_num_hidden_layers"):
        return 0
    steps = int_field(config, "num_nextn_predict_layers", default=1, maximum=MAX_LAYERS)
    kinds = config.get("mtp_hybrid_override_pattern") or config.get("mtp_layers_block_type")
    if isinstance(kinds, str | list) and len(kinds) <= MAX_LAYERS:
        return steps * sum(kind in ("*", "attention") for kind in kinds)
    return int_field(config, "mtp_num_hidden_layers", default=steps, maximum=MAX_LAYERS)


def _ple_inputs(config: dict[str, Any]) -> int:
    """Inputs that Qwen4-Exp's dilated PLE convolution keeps."""
    width = int_field(config, "ple_conv_kernel_size", default=4, maximum=1024)
    return (width - 1) * int_field(config, "ngram_size", default=3, maximum=MAX_CHANNELS)
