"""GPUs, the packages that have kernels for them, and which of those a model would run with."""

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ...errors import StatetrimError
from ...families import families
from ..loading import choose_runtime
from ..placement import default_device
from .packages import installed_version

DISTRIBUTIONS = {
    "fla": "flash-linear-attention",
    "causal_conv1d": "causal-conv1d",
    "mamba_ssm": "mamba-ssm",
    "kernels": "kernels",
    "triton": "triton",
}
"""Where each module with kernels comes from."""

_BOUND_BY_TRANSFORMERS = (
    "fla",
    "causal_conv1d",
    "mamba_ssm",
)  # by transformers, when it imports modelling code
_PYTORCH = "PyTorch"


@dataclass(frozen=True)
class Gpu:
    name: str
    memory: int  # bytes in all
    capability: str


@dataclass(frozen=True)
class KernelPackage:
    """A package with kernels: `version` None where it is not installed."""

    name: str
    version: str | None
    used: bool
    broken: str = ""  # what its import ends with, where it was tried


@dataclass(frozen=True)
class RuntimeUse:
    """What runs models of these types here; without a runtime only their weights can be read."""

    model_types: tuple[str, ...]
    runtime: str | None
    recurrence: str = ""
    convolution: str = ""


def find_gpus() -> tuple[Gpu, ...]:
    if not torch.cuda.is_available():
        return ()
    return tuple(map(_read_gpu, range(torch.cuda.device_count())))


def _read_gpu(index: int) -> Gpu:
    properties = torch.cuda.get_device_properties(index)
    return Gpu(properties.name, properties.total_memory, f"{properties.major}.{properties.minor}")


def find_kernel_packages() -> tuple[KernelPackage, ...]:
    """Each is imported only where a model would import it: with a GPU."""
    return tuple(map(_inspect_kernel_package, DISTRIBUTIONS))


def _inspect_kernel_package(module: str) -> KernelPackage:
    if importlib.util.find_spec(module) is None:
        return KernelPackage(module, None, used=False)
    version = installed_version(DISTRIBUTIONS[module]) or "of unknown version"
    imported = (
        module in _BOUND_BY_TRANSFORMERS and module in sys.modules
    )  # then transformers takes it anywhere
    if module == "kernels" or not (imported or default_device().type == "cuda"):
        return KernelPackage(module, version, used=False)  # kernels of the hub are never asked for
    try:
        importlib.import_module(module)
    except Exception as error:  # built for another torch, say: transformers would be silent
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        return KernelPackage(module, version, used=False, broken=reason)
    return KernelPackage(module, version, used=True)


def runtime_uses(kernel_packages: tuple[KernelPackage, ...]) -> tuple[RuntimeUse, ...]:
    """Model types that are run alike, together."""
    bound = {
        package.name
        for package in kernel_packages
        if package.used and package.name in _BOUND_BY_TRANSFORMERS
    }
    types_by_use: dict[tuple[str | None, str, str], list[str]] = {}
    for model_type in families():
        types_by_use.setdefault(_runtime_use(model_type, bound), []).append(model_type)
    return tuple(RuntimeUse(tuple(types), *use) for use, types in types_by_use.items())


def _runtime_use(model_type: str, bound: set[str]) -> tuple[str | None, str, str]:
    """Runtime, and whose kernels compute the recurrence and the convolution in front of it."""
    family = families()[model_type]
    try:
        runtime = choose_runtime(family, {"model_type": model_type}).name
    except StatetrimError:
        return None, "", ""
    if not family.kernels:
        return None, "", ""
    if runtime != "transformers":
        kernel_source = "fla" if runtime == "fla" else _PYTORCH
        return runtime, kernel_source, kernel_source
    scan = "mamba_ssm" if family.kernels[0].startswith("mamba2") else "fla"
    wanted = (scan, "causal_conv1d")
    return runtime, *(name if name in bound else _PYTORCH for name in wanted)  # type: ignore[return-value]


def kernel_problems(kernel_packages: tuple[KernelPackage, ...], on_gpu: bool) -> Iterator[str]:
    consequences = {
        "fla": "Gated DeltaNet runs in PyTorch, which is slow, and gla, comba and "
        'gated_deltaproduct cannot run: pip install "statetrim[fla]"',
        "causal_conv1d": "convolutions run in PyTorch, which is slower: pip install causal-conv1d",
        "mamba_ssm": "Mamba-2 runs in PyTorch, which is slow: pip install mamba-ssm",
    }
    for package in kernel_packages:
        if package.broken:
            yield (
                f"{package.name} {package.version} is installed but does not import ({package.broken}): "
                f"install a build for PyTorch {torch.__version__}"
            )
        elif on_gpu and package.version is None and package.name in consequences:
            yield f"{package.name} is not installed, so {consequences[package.name]}"
        elif not on_gpu and package.used and package.name in _BOUND_BY_TRANSFORMERS:
            yield (
                f"{package.name} was imported in this process before statetrim, so transformers takes "
                f"its kernels, which fail without a GPU: import statetrim first"
            )
