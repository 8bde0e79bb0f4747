"""Checkpoint -> live model; the only place that chooses transformers, fla or portable."""

import atexit
import importlib.util
import logging
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..errors import StatetrimError, out_of_memory
from ..families.contract import Config, Family, RuntimeName
from ..storage.checkpoint import Checkpoint
from ..storage.models import ModelLike, opened
from ..storage.safetensors_file import DTYPES
from .live import LiveModel, Runtime
from .loaded_weights import check_weights
from .staging import stage, staged_tokenizer

_GPU_KERNELS = ("fla", "causal_conv1d", "mamba_ssm")

_HALF = "in bfloat16, though stored in float32, which its kernel does not take"

logger = logging.getLogger("statetrim")


def runtime_for(family: Family, config: Config, dtype: torch.dtype | None = None) -> Runtime:
    """The first of the family's runtimes that works here: only fla needs more than PyTorch, and
    some of its kernels take no float32. Portable has no softmax layers (`attn`)."""
    known = family.runtimes(config)
    refused = dtype == torch.float32 and family.refuses_float32(config)
    if refused and fla_runs() and "portable" in known and config.get("attn") is None:
        return Runtime("portable", "fla's kernel takes no float32")
    reasons: dict[RuntimeName, str] = {
        "transformers": "with fla's kernels"
        if fla_runs()
        else "with its PyTorch kernels: fla cannot run here",
        "fla": "a GPU with triton is here",
        "portable": "fla needs a GPU with triton",
    }
    for name in known:
        if name != "fla" or fla_runs():
            return Runtime(name, reasons[name])
    raise StatetrimError(
        f"{config.get('model_type')} runs only in fla, which needs a GPU with triton; here it can "
        f"be inspected and pruned by its weights alone, but not run"
    )


def fla_runs() -> bool:
    return (
        torch.cuda.is_available()
        and importlib.util.find_spec("triton") is not None
        and importlib.util.find_spec("fla") is not None
    )


def load(
    model: ModelLike,
    *,
    dtype: torch.dtype | None = None,
    device: str | None = None,
    layerwise: bool = False,
) -> Any:
    """The live causal LM of any supported family, on whatever runtime fits this machine.

    `dtype` None keeps the stored one. `device` None is the first GPU, or the CPU without one.
    `layerwise` leaves the weights on disk and brings each module's in when it runs. The runtime
    chosen is logged and stands in the model's `statetrim_runtime`.
    """
    live = load_live(model, dtype=dtype, device=device, layerwise=layerwise)
    live.module.statetrim_runtime = live.runtime
    return live.module


def load_live(
    model: ModelLike,
    *,
    dtype: torch.dtype | None = None,
    device: str | torch.device | None = None,
    layerwise: bool = False,
) -> LiveModel:
    """The same, with its checkpoint and what else belongs to it."""
    checkpoint = opened(model)
    model_type = checkpoint.config["model_type"]
    runtime, dtype = _runtime_and_dtype(checkpoint, dtype)
    logger.info("%s runs in %s (%s)", model_type, runtime.name, runtime.reason)
    folder = _offload_folder() if layerwise else None
    with _own_kernels_only(), ExitStack() as stack:
        from transformers import AutoModelForCausalLM

        _register(checkpoint.family, runtime)
        auto: Any = AutoModelForCausalLM
        shown = folder or stack.enter_context(tempfile.TemporaryDirectory(prefix="statetrim-"))
        stage(checkpoint, Path(shown))
        try:
            module, info = auto.from_pretrained(
                shown,
                dtype=dtype or "auto",
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=True,
                output_loading_info=True,
                **({"device_map": {"": "disk"}, "offload_folder": folder} if folder else {}),
            )
        except Exception as error:  # a config may say anything
            if out_of_memory(error):
                raise
            reason = str(error).partition("\n")[0][:300]
            raise StatetrimError(
                f"{checkpoint.path} does not load in {runtime.name}: {reason}"
            ) from error
    _check_loaded(info, checkpoint.path)
    check_weights(module, checkpoint)
    home = _device(device)
    module = (module if layerwise else module.to(home)).eval()
    return LiveModel(module, checkpoint, home, runtime, folder)


def _runtime_and_dtype(
    checkpoint: Checkpoint, dtype: torch.dtype | None
) -> tuple[Runtime, torch.dtype | None]:
    """What runs the model, and the dtype it can run it in; one that is asked for stays."""
    family, config = checkpoint.family, checkpoint.config
    wanted = dtype or _stored_dtype(checkpoint)
    runtime = runtime_for(family, config, wanted)
    refused = wanted == torch.float32 and family.refuses_float32(config)
    if runtime.name == "fla" and refused and dtype is None:
        return Runtime("fla", _HALF), torch.bfloat16
    return runtime, dtype


def _stored_dtype(checkpoint: Checkpoint) -> torch.dtype | None:
    """That of the largest tensor; None for a dtype that is no ordinary one."""
    tensors = [tensor for _, tensor in checkpoint.tensors.values()]
    largest = max(tensors, key=lambda tensor: tensor.nbytes, default=None)
    return None if largest is None else DTYPES.get(largest.dtype)


def _device(wanted: str | torch.device | None) -> torch.device:
    """The CPU goes without a number: a parameter that is moved to cpu:0 is none any more."""
    device = torch.device(wanted or ("cuda" if torch.cuda.is_available() else "cpu"))
    return torch.device("cpu") if device.type == "cpu" else device


def _offload_folder() -> Path:
    """For accelerate's disk offload: weights stay in their shards, except those that transformers
    fuses on loading, which go to this temporary folder that lives as long as the process."""
    folder = tempfile.mkdtemp(prefix="statetrim-offload-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def forget_offloaded(live: LiveModel) -> None:
    """Remove that folder early, once all of the model is in memory."""
    if live.offload_folder is not None:
        shutil.rmtree(live.offload_folder, ignore_errors=True)


def materialize(module: nn.Module, device: torch.device) -> None:
    """Bring the weights of a module of a model that was loaded `layerwise` into memory, to stay."""
    from accelerate.hooks import remove_hook_from_module
    from accelerate.utils import set_module_tensor_to_device

    for part in module.modules():
        weights: Any = getattr(getattr(part, "_hf_hook", None), "weights_map", None)
        tensors = [*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)]
        for name, tensor in tensors:
            if tensor.is_meta:
                set_module_tensor_to_device(part, name, device, value=weights[name])
    remove_hook_from_module(module, recurse=True)


def _register(family: Family, runtime: Runtime) -> None:
    """Make transformers' Auto classes know the model types of this family and runtime."""
    family.register()
    if runtime.name == "fla":
        import fla  # noqa: F401  (registers its model types)
    elif runtime.name == "portable":
        from .. import portable

        portable.register()


def load_tokenizer(checkpoint: Checkpoint) -> Any:
    """The model's own tokenizer; never another's, and never remote code."""
    from transformers import AutoTokenizer

    with _own_kernels_only():
        _register(checkpoint.family, runtime_for(checkpoint.family, checkpoint.config))
    try:
        with staged_tokenizer(checkpoint) as directory:
            return AutoTokenizer.from_pretrained(
                directory, local_files_only=True, trust_remote_code=False
            )
    except StatetrimError:
        raise
    except Exception as error:
        reason = str(error).partition("\n")[0][:150]
        raise StatetrimError(f"{checkpoint.path} has no tokenizer that loads: {reason}") from None


def _check_loaded(info: dict[str, Any], path: Path) -> None:
    """A vision tower or a prediction head may stay out; nothing may be missing or misshapen."""
    for problem in ("missing_keys", "mismatched_keys"):
        if info.get(problem):
            name = sorted(map(str, info[problem]))[0]
            raise StatetrimError(
                f"{path} does not fit its own config: {len(info[problem])} {problem.split('_')[0]} "
                f"tensors, the first is {name}"
            )


@contextmanager
def _own_kernels_only() -> Iterator[None]:
    """Without a GPU, hide GPU kernels from transformers while it imports modelling code.

    It binds them at that moment without asking for a device, and then fails on CPU tensors.
    """
    if torch.cuda.is_available():
        yield
        return
    hidden = [name for name in _GPU_KERNELS if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in hidden:
            if sys.modules.get(name) is None:
                del sys.modules[name]
