"""Load a checkpoint as a running model; here transformers, fla or portable is chosen.

Libraries also look for adapters, code, other weights, and links out of a directory. So they load
from a staging directory with links to the checked files, where they find only what may be read.
"""

import importlib.util
import logging
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ..errors import StatetrimError, errors_of
from ..families.contract import Config, Family, RuntimeName
from ..maths.units import MIB
from ..options import takes_options
from ..storage.auxiliary_files import auxiliary_files
from ..storage.checkpoint import Checkpoint
from ..storage.checkpoint_files import CONFIG, INDEX, path_inside
from ..storage.json_file import read_json, write_json
from ..storage.models import ModelLike, as_checkpoint
from ..storage.quantized.find import is_packed, quantization_method
from ..storage.redirections import check_no_redirections, without_redirections
from ..storage.safetensors_file import DTYPES
from .layer_widths import build_with_layer_widths, narrow_buffers
from .live import LiveModel, Runtime
from .loaded_weights import verify_weights
from .placement import Placement, default_device
from .stored_weights import StoredWeights, auto_class, check_complete, empty_model

GPU_KERNELS = ("fla", "causal_conv1d", "mamba_ssm")
"""Packages whose kernels transformers binds when it imports modelling code."""

_BFLOAT16_REASON = "in bfloat16, though stored in float32, which its kernel does not take"

logger = logging.getLogger("statetrim")


def choose_runtime(
    family: Family,
    config: Config,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
) -> Runtime:
    """The first of the family's runtimes that works here; refuses if there is none.

    fla needs a GPU and triton. Where its kernel refuses float32, portable is chosen instead, unless
    the model has softmax layers (`attn`), which portable lacks.
    """
    runtimes, fla_usable = family.runtimes(config), is_fla_usable(device)
    refuses_float32 = dtype == torch.float32 and family.refuses_float32(config)
    if refuses_float32 and fla_usable and "portable" in runtimes and config.get("attn") is None:
        return Runtime("portable", "fla's kernel takes no float32")
    without_fla = "with its PyTorch kernels: fla cannot run here"
    reasons: dict[RuntimeName, str] = {
        "transformers": "with fla's kernels" if fla_usable else without_fla,
        "fla": "a GPU with triton is here",
        "portable": "fla needs a GPU with triton",
    }
    for name in runtimes:
        if name != "fla" or fla_usable:
            return Runtime(name, reasons[name])
    raise StatetrimError(
        f"{config.get('model_type')} runs only in fla, which needs a GPU with triton; here it can "
        f"be inspected and pruned by its weights alone, but not run"
    )


def is_fla_usable(device: torch.device | None = None) -> bool:
    """Whether this device is a GPU, and fla and triton are installed."""
    return (
        (device or default_device()).type == "cuda"
        and importlib.util.find_spec("triton") is not None
        and importlib.util.find_spec("fla") is not None
    )


@takes_options(Placement)
def load(model: ModelLike, options: Placement) -> Any:
    """Load the causal language model of any supported family, with the runtime that fits this
    machine.

    `dtype` None keeps the stored one. `device` None is the first GPU, or the CPU without one;
    `device_map` "auto" spreads the layers over all GPUs, using at most `max_memory` of each
    ("0=70GiB,1=40GiB"). `layerwise` leaves the weights on disk and loads each layer when it runs.
    The chosen runtime is logged, and is the model's attribute `statetrim_runtime`.
    """
    live = load_live(model, options)
    live.module.statetrim_runtime = live.runtime
    return live.module


def load_live(model: ModelLike, placement: Placement | None = None) -> LiveModel:
    """Load a model with the runtime that fits this machine; refuses one that does not load."""
    placement = placement or Placement()
    checkpoint = as_checkpoint(model)
    model_type = checkpoint.model_type
    method = quantization_method(checkpoint.config)
    if method and any(map(is_packed, checkpoint.logical_tensors)):
        raise StatetrimError(
            f"{checkpoint.path} is quantised by {method}, in a way that cannot be run here; "
            f"use the unquantised model"
        )
    device = placement.input_device
    runtime, dtype = _choose_runtime_and_dtype(checkpoint, placement.torch_dtype, device)
    placement = replace(placement, dtype=dtype)
    logger.info("%s runs in %s (%s)", model_type, runtime.name, runtime.reason)
    own_reader = placement.layerwise or bool(checkpoint.quantized)
    load_model = _load_from_files if own_reader else _load_in_memory
    with hide_gpu_kernels(device), tempfile.TemporaryDirectory(prefix="statetrim-") as name:
        import transformers  # noqa: F401  (binds its kernels now)

        staging_directory = Path(name)
        _register_model_types(checkpoint.family, runtime)
        stage_checkpoint(checkpoint, staging_directory)
        with errors_of(f"{checkpoint.path} does not load in {runtime.name}"):
            with build_with_layer_widths(checkpoint, staging_directory):
                live = load_model(checkpoint, staging_directory, placement, runtime)
            narrow_buffers(live.module, checkpoint)
        return live


def _load_in_memory(
    checkpoint: Checkpoint, staging_directory: Path, placement: Placement, runtime: Runtime
) -> LiveModel:
    """Load all weights with `from_pretrained`, and check that they are those of the files."""
    module, info = auto_class(checkpoint).from_pretrained(
        staging_directory,
        dtype=placement.torch_dtype or "auto",
        use_safetensors=True,
        trust_remote_code=False,
        local_files_only=True,
        output_loading_info=True,
        **placement.from_pretrained_kwargs,
    )
    check_complete(module, checkpoint.path, info["missing_keys"], info["mismatched_keys"])
    verify_weights(module, checkpoint)
    device = module.get_input_embeddings().weight.device
    return LiveModel(module.eval(), checkpoint, device, runtime)


def _choose_runtime_and_dtype(
    checkpoint: Checkpoint, dtype: torch.dtype | None, device: torch.device
) -> tuple[Runtime, torch.dtype | None]:
    """The runtime, and `dtype`, where None becomes bfloat16 if the runtime needs it."""
    family, config = checkpoint.family, checkpoint.config
    target_dtype = dtype or _stored_dtype(checkpoint)
    runtime = choose_runtime(family, config, target_dtype, device)
    refuses_float32 = target_dtype == torch.float32 and family.refuses_float32(config)
    if runtime.name == "fla" and refuses_float32 and dtype is None:
        return Runtime("fla", _BFLOAT16_REASON), torch.bfloat16
    return runtime, dtype


def _stored_dtype(checkpoint: Checkpoint) -> torch.dtype | None:
    """The dtype of the largest tensor that is not quantised; None without one."""
    stored = [info for _, info in checkpoint.tensors.values() if info.dtype in DTYPES]
    largest = max(stored, key=lambda info: info.nbytes, default=None)
    return None if largest is None else DTYPES[largest.dtype]


def _load_from_files(
    checkpoint: Checkpoint, staging_directory: Path, placement: Placement, runtime: Runtime
) -> LiveModel:
    """Build the model without weights; with `layerwise` each layer reads its own from disk when it
    runs, else all are read now. Quantised weights are dequantised."""
    device = placement.input_device
    module = empty_model(checkpoint, staging_directory, placement.torch_dtype, device)
    weights = StoredWeights(module, checkpoint, device)
    if not placement.layerwise:  # a quantised model
        weights.load(module)
        return LiveModel(module, checkpoint, device, runtime)
    live = LiveModel(module, checkpoint, device, runtime, weights)
    weights.stream([*live.decoder_layers, *live.mixers.values()])
    return live


def _register_model_types(family: Family, runtime: Runtime) -> None:
    """Register the model types of this family and runtime with transformers' Auto classes."""
    family.register()
    if runtime.name == "fla":
        import fla.models
        from transformers import AutoConfig, PreTrainedConfig

        # Its import does so only once, and `portable` registers some of the same types.
        for value in vars(fla.models).values():
            if isinstance(value, type) and issubclass(value, PreTrainedConfig):
                config: Any = value
                AutoConfig.register(config.model_type, config, exist_ok=True)
    elif runtime.name == "portable":
        from .. import portable

        portable.register()


def load_tokenizer(checkpoint: Checkpoint) -> Any:
    """Load the tokenizer from the checkpoint's own files, without remote code."""
    from transformers import AutoTokenizer

    if not any("token" in name or "vocab" in name for name in auxiliary_files(checkpoint)):
        raise StatetrimError(
            f"{checkpoint.path} has no tokenizer, so it reads no text; add the tokenizer's files, "
            "or take calibrate, select and prune in Python with inputs of your own"
        )
    runtime, _ = _choose_runtime_and_dtype(checkpoint, None, default_device())
    with hide_gpu_kernels():
        _register_model_types(checkpoint.family, runtime)
    with (
        errors_of(f"{checkpoint.path} has no tokenizer that loads"),
        tempfile.TemporaryDirectory(prefix="statetrim-") as directory,
    ):
        stage_tokenizer(checkpoint, Path(directory))
        tokenizer = AutoTokenizer.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False
        )
        tokenizer("a", add_special_tokens=False)  # fails if its config is wrong
    return tokenizer


@contextmanager
def hide_gpu_kernels(device: torch.device | None = None) -> Iterator[None]:
    """Within, hide packages with GPU kernels from transformers, unless a GPU is used or they are
    imported already.

    It binds them when it imports modelling code, whatever the device, and fails on CPU tensors.
    """
    if (device or default_device()).type == "cuda":
        yield
        return
    hidden_names = set(GPU_KERNELS) - sys.modules.keys()
    sys.modules.update(dict.fromkeys(hidden_names))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in hidden_names:
            if sys.modules.get(name) is None:
                del sys.modules[name]


GENERATION_CONFIG = "generation_config.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
_MAX_BYTES = 16 * MIB
_CODE_FIELDS = ("auto_map", "custom_generate")  # fields that may name code


def stage_tokenizer(checkpoint: Checkpoint, directory: Path) -> None:
    """Link the tokenizer's files into `directory`, without code, and write config.json; config
    fields that name files or code are removed."""
    files = auxiliary_files(checkpoint)
    write_json(directory / CONFIG, without_redirections(checkpoint.config))
    if TOKENIZER_CONFIG in files:
        fields = read_json(files.pop(TOKENIZER_CONFIG), _MAX_BYTES)
        # Its files have fixed names, so a path there is obsolete or malicious.
        for field in list(fields):
            if field.endswith(("_file", "_files")) or field in (*_CODE_FIELDS, "name_or_path"):
                del fields[field]
        write_json(directory / TOKENIZER_CONFIG, fields)
    for relative, path in files.items():
        if path.suffix not in (".py", ".md"):
            _link(path, directory / relative)


def stage_checkpoint(checkpoint: Checkpoint, directory: Path) -> None:
    """Link the weights into `directory`, and write their configs without redirections."""
    check_no_redirections(checkpoint.path, checkpoint.config)
    write_json(directory / CONFIG, without_redirections(checkpoint.config))
    if checkpoint.index is not None:
        write_json(directory / INDEX, checkpoint.index)
    for shard in checkpoint.shards:
        _link(shard.path, directory / shard.path.name)
    generation = checkpoint.path / GENERATION_CONFIG
    if generation.exists() or generation.is_symlink():
        fields = read_json(path_inside(checkpoint.path, GENERATION_CONFIG), _MAX_BYTES)
        kept = {name: value for name, value in fields.items() if name not in _CODE_FIELDS}
        write_json(directory / GENERATION_CONFIG, kept)


def _link(path: Path, target: Path) -> None:
    """Make `target` a symbolic link to `path`; creates its parent directory."""
    target.parent.mkdir(exist_ok=True)
    target.symlink_to(path.resolve())
