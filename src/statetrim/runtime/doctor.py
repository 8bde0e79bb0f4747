"""A summary for bug reports: versions, GPUs, kernels and what uses them, engines, and problems."""

import importlib
import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ..errors import StatetrimError
from ..families import families
from ..version import __version__
from .loading import GPU_KERNELS, choose_runtime
from .packages import (
    QUANTIZERS,
    Package,
    engine_versions,
    engines_in,
    installed_version,
    required_packages,
)
from .placement import default_device

DISTRIBUTIONS = {
    "fla": "flash-linear-attention",
    "causal_conv1d": "causal-conv1d",
    "mamba_ssm": "mamba-ssm",
    "kernels": "kernels",
    "triton": "triton",
}
"""Module with kernels -> its name on the package index."""

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
    gpus = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        card = torch.cuda.get_device_properties(index)
        gpus.append(Gpu(card.name, card.total_memory, f"{card.major}.{card.minor}"))
    return tuple(gpus)


def _inspect_kernel_package(module: str) -> KernelPackage:
    """Imports `module` where a model would; an error of the import is recorded as `broken`."""
    if importlib.util.find_spec(module) is None:
        return KernelPackage(module, None, used=False)
    version = installed_version(DISTRIBUTIONS[module]) or "of unknown version"
    # transformers uses an imported package on any device.
    imported = module in GPU_KERNELS and module in sys.modules
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
    bound = used.intersection(GPU_KERNELS)
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
        elif not on_gpu and package.used and package.name in GPU_KERNELS:
            yield (
                f"{package.name} was imported in this process before statetrim, so transformers "
                f"takes its kernels, which fail without a GPU: import statetrim first"
            )


SETTINGS = (
    "CUDA_VISIBLE_DEVICES", "HF_HUB_OFFLINE", "OMP_NUM_THREADS", "TRANSFORMERS_OFFLINE",
    "USE_HUB_KERNELS",
)  # fmt: skip
"""Environment variables that change what runs; none of them holds a path or a secret."""


@dataclass(frozen=True)
class Environment:
    """What is installed, which parts will be used, and any problems. It contains no paths and no
    machine names, so it can be shared."""

    statetrim: str
    python: str
    system: str
    cores: int
    packages: tuple[Package, ...]
    device: str  # the default device of models
    gpus: tuple[Gpu, ...]
    cuda: str | None  # version that PyTorch was built for
    kernels: tuple[KernelPackage, ...]
    uses: tuple[RuntimeUse, ...]
    engines: dict[str, str | None]  # None: not found
    quantizers: dict[str, str | None]  # packages for quantised checkpoints; None: not installed
    settings: dict[str, str]
    problems: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()  # extras that are not installed

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def doctor(engine_pythons: Sequence[str | Path] = ()) -> Environment:
    """Describe this environment, and find the engines in the environments that `engine_pythons`
    belong to. Problems are listed, not raised; only an entry of `engine_pythons` that is not a
    program is refused."""
    engines, engine_problems = _engines(engine_pythons)
    required, gpu_list = required_packages(), find_gpus()
    kernel_packages = tuple(map(_inspect_kernel_package, DISTRIBUTIONS))
    package_problems, missing_extras = list[str](), list[str]()
    for package in required:
        is_missing_extra = package.extra and package.version is None
        if package.problem is not None:
            (missing_extras if is_missing_extra else package_problems).append(package.problem)
    return Environment(
        statetrim=__version__,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        cores=os.cpu_count() or 1,
        packages=required,
        device=str(default_device()),
        gpus=gpu_list,
        cuda=torch.version.cuda,
        kernels=kernel_packages,
        uses=runtime_uses(kernel_packages),
        engines=engines,
        quantizers={name: installed_version(name) for name in QUANTIZERS},
        settings={name: os.environ[name] for name in SETTINGS if name in os.environ},
        problems=(
            *package_problems,
            *_device_problems(gpu_list),
            *kernel_problems(kernel_packages, bool(gpu_list)),
            *engine_problems,
        ),
        optional=tuple(missing_extras),
    )


def _engines(pythons: Sequence[str | Path]) -> tuple[dict[str, str | None], list[str]]:
    """Each engine's version (None: not found), and problems of the environments that reported none.
    The last environment that has an engine counts; the version of a llama-server on PATH is
    unknown, so its name is listed instead."""
    engines, problems = engine_versions(installed_version), []
    if engines["llama.cpp"] is None and shutil.which("llama-server"):
        engines["llama.cpp"] = "llama-server"
    for number, python in enumerate(pythons, 1):
        versions = engines_in(Path(python))
        if isinstance(versions, str):
            problems.append(f"the Python of --engine-python {number} does not answer: {versions}")
        elif not any(versions.values()):
            names = ", ".join(engines)
            problems.append(f"the environment of --engine-python {number} has none of {names}")
        else:
            engines |= {name: version for name, version in versions.items() if version}
    return engines, problems


def _device_problems(gpu_list: Sequence[Gpu]) -> Iterator[str]:
    """At most one text: PyTorch lacks CUDA though nvidia-smi is here, or it finds no GPU."""
    built = f"PyTorch {torch.__version__}"
    if gpu_list or torch.backends.mps.is_available():
        return
    if shutil.which("nvidia-smi") and not torch.version.cuda:
        yield f"{built} was built without CUDA, so the GPU stays idle: install a CUDA build"
    elif torch.version.cuda:
        yield (
            f"{built} was built for CUDA {torch.version.cuda} and finds no GPU, so models run on "
            f"the CPU: check nvidia-smi and CUDA_VISIBLE_DEVICES"
        )
