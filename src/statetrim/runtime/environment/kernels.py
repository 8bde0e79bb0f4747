"""GPUs, the packages that have kernels for them, and which of those a model would run with."""

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ...errors import StatetrimError
from ...families import families
from ..loading import runtime_for
from ..placement import own_device
from .packages import installed

DISTRIBUTIONS = {
    "fla": "flash-linear-attention",
    "causal_conv1d": "causal-conv1d",
    "mamba_ssm": "mamba-ssm",
    "kernels": "kernels",
    "triton": "triton",
}
"""Where each module with kernels comes from."""

_BOUND = ("fla", "causal_conv1d", "mamba_ssm")  # by transformers, when it imports modelling code
_PYTORCH = "PyTorch"


@dataclass(frozen=True)
class Gpu:
    name: str
    memory: int  # bytes in all
    capability: str


@dataclass(frozen=True)
class Kernels:
    """A package with kernels: `version` None where it is not installed."""

    name: str
    version: str | None
    used: bool
    broken: str = ""  # what its import ends with, where it was tried


@dataclass(frozen=True)
class Use:
    """What runs models of these types here; without a runtime only their weights can be read."""

    model_types: tuple[str, ...]
    runtime: str | None
    recurrence: str = ""
    convolution: str = ""


def gpus() -> tuple[Gpu, ...]:
    if not torch.cuda.is_available():
        return ()
    return tuple(map(_gpu, range(torch.cuda.device_count())))


def _gpu(card: int) -> Gpu:
    found = torch.cuda.get_device_properties(card)
    return Gpu(found.name, found.total_memory, f"{found.major}.{found.minor}")


def kernels() -> tuple[Kernels, ...]:
    """Each is imported only where a model would import it: with a GPU."""
    return tuple(map(_kernels, DISTRIBUTIONS))


def _kernels(module: str) -> Kernels:
    if importlib.util.find_spec(module) is None:
        return Kernels(module, None, used=False)
    version = installed(DISTRIBUTIONS[module]) or "of unknown version"
    imported = module in _BOUND and module in sys.modules  # then transformers takes it anywhere
    if module == "kernels" or not (imported or own_device().type == "cuda"):
        return Kernels(module, version, used=False)  # kernels of the hub are never asked for
    try:
        importlib.import_module(module)
    except Exception as error:  # built for another torch, say: transformers would be silent
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        return Kernels(module, version, used=False, broken=reason)
    return Kernels(module, version, used=True)


def uses(found: tuple[Kernels, ...]) -> tuple[Use, ...]:
    """Model types that are run alike, together."""
    bound = {one.name for one in found if one.used and one.name in _BOUND}
    alike: dict[tuple[str | None, str, str], list[str]] = {}
    for model_type in families():
        alike.setdefault(_use(model_type, bound), []).append(model_type)
    return tuple(Use(tuple(types), *how) for how, types in alike.items())


def _use(model_type: str, bound: set[str]) -> tuple[str | None, str, str]:
    """Runtime, and whose kernels compute the recurrence and the convolution in front of it."""
    family = families()[model_type]
    try:
        runtime = runtime_for(family, {"model_type": model_type}).name
    except StatetrimError:
        return None, "", ""
    if not family.kernels:
        return None, "", ""
    if runtime != "transformers":
        own = "fla" if runtime == "fla" else _PYTORCH
        return runtime, own, own
    scan = "mamba_ssm" if family.kernels[0].startswith("mamba2") else "fla"
    wanted = (scan, "causal_conv1d")
    return runtime, *(name if name in bound else _PYTORCH for name in wanted)  # type: ignore[return-value]


def kernel_problems(found: tuple[Kernels, ...], on_gpu: bool) -> Iterator[str]:
    slow = {
        "fla": "Gated DeltaNet runs in PyTorch, which is slow, and gla, comba and "
        'gated_deltaproduct cannot run: pip install "statetrim[fla]"',
        "causal_conv1d": "convolutions run in PyTorch, which is slower: pip install causal-conv1d",
        "mamba_ssm": "Mamba-2 runs in PyTorch, which is slow: pip install mamba-ssm",
    }
    for one in found:
        if one.broken:
            yield (
                f"{one.name} {one.version} is installed but does not import ({one.broken}): "
                f"install a build for PyTorch {torch.__version__}"
            )
        elif on_gpu and one.version is None and one.name in slow:
            yield f"{one.name} is not installed, so {slow[one.name]}"
        elif not on_gpu and one.used and one.name in _BOUND:
            yield (
                f"{one.name} was imported in this process before statetrim, so transformers takes "
                f"its kernels, which fail without a GPU: import statetrim first"
            )
