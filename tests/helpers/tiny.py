"""Tiny random checkpoints, one per model type, built by the stock classes."""

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

FLA_INSTALLED = all(importlib.util.find_spec(name) for name in ("triton", "fla"))
# transformers takes fla's GPU kernels wherever fla can be imported, and then fails on CPU tensors.
sys.modules.setdefault("fla", None)  # type: ignore[arg-type]
sys.modules.setdefault("causal_conv1d", None)  # type: ignore[arg-type]

import pytest  # noqa: E402
import torch  # noqa: E402
from packaging.version import Version  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from statetrim import portable  # noqa: E402
from statetrim.families import families  # noqa: E402

VOCABULARY = 64
_SHAPE = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48}
_SOFTMAX = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
_EXPERTS = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}  # fmt: skip
_LINEAR = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 12,
    "linear_value_head_dim": 8,
}  # fmt: skip
_QWEN = {**_SHAPE, **_SOFTMAX, **_LINEAR, "num_hidden_layers": 4, "full_attention_interval": 2}
_VISION = {
    "depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 32,
    "patch_size": 4, "num_position_embeddings": 16,
}  # fmt: skip
_INDEXER = {
    "hc_count": 2, "hc_lowrank": 4, "indexer_n_heads": 2, "indexer_kv_heads": 1,
    "indexer_head_dim": 8, "indexer_budget": 8, "indexer_compress_ratio": 4,
}  # fmt: skip
_MAMBA = {
    "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 2, "mamba_d_state": 12,
    "mamba_chunk_size": 16, "mamba_proj_bias": True,
}  # fmt: skip
# Prefill clamps the step to time_step_min and decoding does not (upstream, pruned or not).
_NO_CLAMP = 1e-12

CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3_next": {**_QWEN, **_EXPERTS},
    "qwen3_5_text": _QWEN,
    "qwen3_5_moe_text": {**_QWEN, **_EXPERTS},
    "qwen3_5": {"text_config": _QWEN, "vision_config": _VISION},
    "qwen3_5_moe": {"text_config": {**_QWEN, **_EXPERTS}, "vision_config": _VISION},
    "qwen4_exp_text": {**_QWEN, **_EXPERTS, **_INDEXER},
    "qwen4_exp": {
        "text_config": {**_QWEN, **_EXPERTS, **_INDEXER},
        "vision_config": _VISION,
    },
    "olmo_hybrid": {
        **_SHAPE,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "linear_key_head_dim": 12,
        "linear_value_head_dim": 16,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "layer_types": ["linear_attention", "full_attention"] * 2,
    },
    "mamba2": {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_heads": 8,
        "head_dim": 8,
        "n_groups": 2,
        "state_size": 12,
        "chunk_size": 16,
        "use_bias": True,
    },
    "bamba": {**_SHAPE, **_MAMBA, "num_attention_heads": 4, "num_key_value_heads": 2,
              "num_hidden_layers": 3, "attn_layer_indices": [1]},
    "falcon_h1": {**_SHAPE, **_MAMBA, **_SOFTMAX, "num_hidden_layers": 2, "mamba_d_ssm": 64},
    "granitemoehybrid": {
        **_SHAPE, **_MAMBA, "num_attention_heads": 4, "num_key_value_heads": 2,
        "num_hidden_layers": 3, "layer_types": ["mamba", "attention", "mamba"],
        "num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 16,
        "pad_token_id": 0,
    },
    "nemotron_h": {
        "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "layers_block_type": ["mamba", "mlp", "attention", "mamba"],
        "ssm_state_size": 12, "mamba_num_heads": 8, "mamba_head_dim": 8, "n_groups": 2,
        "chunk_size": 16, "time_step_min": _NO_CLAMP,
    },
    "zamba2": {
        "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 4,
        "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],  # which share a block
        "mamba_d_state": 12, "mamba_ngroups": 2, "n_mamba_heads": 8, "chunk_size": 16,
        "time_step_min": _NO_CLAMP,
        "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 48,
        "num_mem_blocks": 1, "adapter_rank": 4,
    },
}  # fmt: skip
_TOWER = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
}  # fmt: skip
_MINICPM = {
    "text_config": {**_QWEN, "model_type": "qwen3_5_text"},
    "vision_config": {**_TOWER, "patch_size": 4, "image_size": 16},
    "insert_layer_id": 1,
}
_SPEECH = {**_TOWER, "num_mel_bins": 8}
CONFIGS |= {
    **dict.fromkeys(("minicpmv4_6", "minicpmv4_7", "minicpm_ocr"), _MINICPM),
    "nemotron_h_omni": {
        "text_config": CONFIGS["nemotron_h"],
        "vision_config": {**_TOWER, "video_temporal_patch_size": 2},
        "vision_hidden_size": 16,
        "projector_hidden_size": 16,
    },
    "nemo_speechlm": {
        "text_config": CONFIGS["nemotron_h"],
        "audio_config": {
            "asr_config": _SPEECH,
            "diarization_config": {
                "audio_config": _SPEECH,
                "head_config": {**_TOWER, "audio_hidden_size": 16},
            },
        },
        "word_timestamp_config": {**_TOWER, "vocab_size": 8, "blank_token_id": 7},
        "audio_token_id": VOCABULARY - 1,
    },
}
_PORTABLE = {**_SHAPE, "num_hidden_layers": 2, "conv_bias": True}
CONFIGS |= {
    "delta_net": {**_PORTABLE, "num_heads": 4, "expand_k": 1.5, "expand_v": 1.0},
    "gated_deltanet": {
        **_PORTABLE, "num_heads": 2, "num_v_heads": 4, "head_dim": 12, "expand_v": 2.0,
    },
    "kda": {**_PORTABLE, "num_heads": 2, "num_v_heads": 4, "head_dim": 12, "expand_v": 2.0},
}  # fmt: skip
NESTED_TYPES = ("minicpmv4_6", "minicpmv4_7", "minicpm_ocr", "nemotron_h_omni", "nemo_speechlm")
"""Multimodal types whose text model is one of the other types, and is tested as such."""
REQUIRED_TRANSFORMERS = {"minicpm_ocr": "5.21", "nemo_speechlm": "5.22"}
"""Types that need a newer transformers than the oldest supported one -> its version."""
MODEL_TYPES = tuple(name for name in CONFIGS if name not in NESTED_TYPES)
VISION_TYPES = tuple(name for name in MODEL_TYPES if "vision_config" in CONFIGS[name])
ONE_OF_EACH_MIXER = (
    "delta_net", "gated_deltanet", "kda", "qwen3_next", "qwen3_5_moe", "olmo_hybrid", "mamba2",
    "nemotron_h", "zamba2",
)  # fmt: skip
"""The other types have the mixer of one of these, with other layers around it."""
WHOLE_RUNS = ("gated_deltanet", "kda", "qwen3_5_moe", "mamba2", "zamba2")
"""For tests of whole commands, which do not depend on the mixer: a delta rule, a type whose values
cannot be cut, experts with a vision tower, Mamba-2, and layers that share a block."""
_MLA = {
    **_SHAPE, "num_attention_heads": 4, "num_key_value_heads": 4, "kv_lora_rank": 8,
    "qk_nope_head_dim": 8, "v_head_dim": 8, "moe_intermediate_size": 16, "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "full_attention"] * 2, "num_experts_per_tok": 2,
    "linear_num_heads": 4, "linear_head_dim": 12, "pad_token_id": 0,
}  # fmt: skip
_GLM5 = {
    **_MLA, "qk_rope_head_dim": 0, "q_lora_rank": 8, "n_routed_experts": 4, "index_topk": 128,
    "index_kpool": 4, "index_head_dim": 8, "index_n_heads": 2, "hc_mult": 2,
}  # fmt: skip
HEAD_CONFIGS: dict[str, dict[str, Any]] = {
    "kimi_linear": {**_MLA, "qk_rope_head_dim": 4, "num_local_experts": 4, "n_group": 1},
    "glm5_next": {
        "text_config": _GLM5,
        "vision_config": {
            "depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2,
            "out_hidden_size": 32, "patch_size": 4, "image_size": 16,
            "projection_intermediate_size": 16,
        },
    },
}  # fmt: skip
"""Types from which only whole heads can be removed."""


def every_type(*in_ci: str) -> pytest.MarkDecorator:
    """Parametrizes a test by `model_type`: the types `in_ci`, and the others as slow tests."""
    slow = [pytest.param(name, marks=pytest.mark.slow) for name in MODEL_TYPES if name not in in_ci]
    return pytest.mark.parametrize("model_type", [*in_ci, *slow])


def stock_class(model_type: str) -> Any:
    import transformers
    from transformers import AutoModelForImageTextToText

    if model_type in VISION_TYPES:
        return AutoModelForImageTextToText
    family = families()[model_type]
    return getattr(transformers, family.auto_class({"model_type": model_type}))


portable.register()  # fla's own classes cannot run here


def build(
    model_type: str,
    directory: Path,
    shard_size: str = "40KB",
    as_saved: bool = False,
    **changed: Any,
) -> Path:
    """Save a random checkpoint whose activations are of order one, in several shards.

    `as_saved` leaves it as transformers saves it, which for OLMo-Hybrid is not the hub's layout.
    """
    import transformers
    from transformers import AutoConfig

    required = REQUIRED_TRANSFORMERS.get(model_type, "0")
    if Version(transformers.__version__) < Version(required):
        pytest.skip(f"transformers knows {model_type} since {required}")
    torch.manual_seed(0)
    families()[model_type].register()
    fields = (CONFIGS | HEAD_CONFIGS)[model_type]
    config = AutoConfig.for_model(model_type, **(fields | changed))
    model = stock_class(model_type).from_config(config)
    randomize(model)
    model.save_pretrained(directory, max_shard_size=shard_size)
    if model_type == "olmo_hybrid" and not as_saved:
        undo_equal_thirds(directory, CONFIGS[model_type])
    write_tokenizer(directory)
    return directory


def write_tokenizer(directory: Path) -> None:
    """Words w1 to w63, separated by spaces; 0 ends a text."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    words = {"<end>": 0} | {f"w{i}": i for i in range(1, VOCABULARY)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<end>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>").save_pretrained(
        directory
    )


def tensors(directory: Path) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint."""
    files = sorted(directory.glob("*.safetensors"))
    return {name: value for file in files for name, value in load_file(file).items()}


def rewrite(model: Path, name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Replace a stored tensor."""
    for path in model.glob("*.safetensors"):
        tensors_of_file = load_file(path)
        if name in tensors_of_file:
            tensors_of_file[name] = change(tensors_of_file[name]).contiguous()
            save_file(tensors_of_file, path, metadata={"format": "pt"})


def edit_json(path: Path, **fields: Any) -> None:
    """Set fields of a JSON file; it is made if there is none."""
    stored = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(stored | fields))


def write_text(path: Path, words: int, seed: int = 0) -> Path:
    """Write a .jsonl of random words, 50 per document."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, VOCABULARY, (words // 50, 50), generator=generator).tolist()
    lines = [json.dumps({"text": " ".join(f"w{i}" for i in row)}) for row in ids]
    path.write_text("\n".join(lines))
    return path


def randomize(model: torch.nn.Module) -> None:
    """Random weights large enough that q and k are far above the norms' eps."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("A_log", "dt_bias", ".D")):
                continue
            if "conv" in name or name.endswith("bias"):
                parameter.normal_()
            elif parameter.dim() >= 2:
                parameter.normal_(std=parameter.shape[-1] ** -0.5)
            else:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)  # a norm: 1, or 0 for 1 + w


def undo_equal_thirds(directory: Path, config: dict[str, Any]) -> None:
    """Split the convolutions as on the hub; save_pretrained splits them into equal thirds."""
    heads = config["num_attention_heads"]
    sizes = [heads * config[f"linear_{kind}_head_dim"] for kind in ("key", "key", "value")]
    files = {path: load_file(path) for path in sorted(directory.glob("*.safetensors"))}
    file_of = {name: path for path, tensors in files.items() for name in tensors}
    for name in [name for name in file_of if name.endswith("q_conv1d.weight")]:
        names = [name.replace("q_conv1d", f"{tensor_name}_conv1d") for tensor_name in "qkv"]
        fused = torch.cat([files[file_of[n]][n] for n in names])
        for tensor_name, tensor in zip(names, torch.split(fused, sizes), strict=True):
            files[file_of[tensor_name]][tensor_name] = tensor.contiguous()
    for path, tensors in files.items():
        save_file(tensors, path, metadata={"format": "pt"})
