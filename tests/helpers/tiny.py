"""Tiny random checkpoints, one per model type, built by the stock classes."""

import importlib.util
import json
import shutil
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
import yaml  # noqa: E402
from packaging.version import Version  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from statetrim import portable  # noqa: E402
from statetrim.families import families  # noqa: E402

Load = Callable[[str], Path]
"""From a model type to a tiny checkpoint, as the fixture `checkpoint`."""
VOCABULARY = 64
_CONFIGS = yaml.safe_load((Path(__file__).parents[1] / "data" / "tiny_configs.yaml").read_text())
CONFIGS: dict[str, dict[str, Any]] = _CONFIGS["channels"]
HEAD_CONFIGS: dict[str, dict[str, Any]] = _CONFIGS["heads"]
"""Types from which only whole heads can be removed."""
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


def to_bfloat16(source: Path, target: Path) -> Path:
    """Copy a checkpoint with all tensors in bfloat16."""
    shutil.copytree(source, target)
    for path in target.glob("*.safetensors"):
        rounded = {name: x.bfloat16() for name, x in load_file(path).items()}
        save_file(rounded, path, {"format": "pt"})
    edit_json(target / "config.json", dtype="bfloat16")
    return target


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
