"""GPUs, packages with GPU kernels, and which of these packages each model type would use."""

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
"""Module with kernels -> its name on the package index."""

_BOUND_BY_TRANSFORMERS = ("fla", "causal_conv1d", "mamba_ssm")  # on import of modelling code
_PYTORCH = "PyTorch"


@dataclass(frozen=True)
class Gpu:
    """A CUDA device."""

    name: str
    memory: int  # total bytes
    capability: str


@dataclass(frozen=True)
class KernelPackage:
    """A package with kernels; `version` is None if it is not installed."""

    name: str
    version: str | None
    used: bool
    broken: str = ""  # error of its import, if that was tried


@dataclass(frozen=True)
class RuntimeUse:
    """The runtime and kernels of these model types here; without a runtime only their weights can
    be read."""

    model_types: tuple[str, ...]
    runtime: str | None
    recurrence: str = ""
    convolution: str = ""


def find_gpus() -> tuple[Gpu, ...]:
    """The GPUs that PyTorch can use."""
    if not torch.cuda.is_available():
        return ()
    return tuple(map(_read_gpu, range(torch.cuda.device_count())))


def _read_gpu(index: int) -> Gpu:
    properties = torch.cuda.get_device_properties(index)
    return Gpu(properties.name, properties.total_memory, f"{properties.major}.{properties.minor}")


def find_kernel_packages() -> tuple[KernelPackage, ...]:
    """An entry for each package in `DISTRIBUTIONS`, installed or not; one is imported only where a
    model would import it: on a GPU."""
    return tuple(map(_inspect_kernel_package, DISTRIBUTIONS))


def _inspect_kernel_package(module: str) -> KernelPackage:
    """Imports `module` on a GPU, or if it is imported already; an error of the import is recorded
    as `broken`. `kernels` is never imported."""
    if importlib.util.find_spec(module) is None:
        return KernelPackage(module, None, used=False)
    version = installed_version(DISTRIBUTIONS[module]) or "of unknown version"
    # transformers uses an imported package on any device.
    imported = module in _BOUND_BY_TRANSFORMERS and module in sys.modules
    if module == "kernels" or not (imported or default_device().type == "cuda"):
        return KernelPackage(module, version, used=False)  # hub kernels are never requested
    try:
        importlib.import_module(module)
    except Exception as error:  # e.g. built for another torch: transformers would not warn
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        return KernelPackage(module, version, used=False, broken=reason)
    return KernelPackage(module, version, used=True)


def runtime_uses(kernel_packages: tuple[KernelPackage, ...]) -> tuple[RuntimeUse, ...]:
    """How each model type runs here; types with the same runtime and kernels are one entry."""
    used = {package.name for package in kernel_packages if package.used}
    bound = used.intersection(_BOUND_BY_TRANSFORMERS)
    types_by_use: dict[tuple[str | None, str, str], list[str]] = {}
    for model_type in families():
        types_by_use.setdefault(_runtime_use(model_type, bound), []).append(model_type)
    return tuple(RuntimeUse(tuple(types), *use) for use, types in types_by_use.items())


def _runtime_use(model_type: str, bound: set[str]) -> tuple[str | None, str, str]:
    """Runtime, and the packages whose kernels compute the recurrence and the convolution; (None,
    "", "") if the model type cannot run here. `bound` are the kernel packages that transformers
    uses."""
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
    recurrence = scan if scan in bound else _PYTORCH
    convolution = "causal_conv1d" if "causal_conv1d" in bound else _PYTORCH
    return runtime, recurrence, convolution


def kernel_problems(kernel_packages: tuple[KernelPackage, ...], on_gpu: bool) -> Iterator[str]:
    """Texts about packages that are broken, missing on a GPU, or imported too early."""
    consequences = {
        "fla": "Gated DeltaNet runs in PyTorch, which is slow, and gla, comba and "
        'gated_deltaproduct cannot run: pip install "statetrim[fla]"',
        "causal_conv1d": "convolutions run in PyTorch, which is slower: pip install causal-conv1d",
        "mamba_ssm": "Mamba-2 runs in PyTorch, which is slow: pip install mamba-ssm",
    }
    for package in kernel_packages:
        if package.broken:
            yield (
                f"{package.name} {package.version} is installed but does not import "
                f"({package.broken}): install a build for PyTorch {torch.__version__}"
            )
        elif on_gpu and package.version is None and package.name in consequences:
            yield f"{package.name} is not installed, so {consequences[package.name]}"
        elif not on_gpu and package.used and package.name in _BOUND_BY_TRANSFORMERS:
            yield (
                f"{package.name} was imported in this process before statetrim, so transformers "
                f"takes its kernels, which fail without a GPU: import statetrim first"
            )
