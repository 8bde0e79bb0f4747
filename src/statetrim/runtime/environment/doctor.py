"""A summary for bug reports: versions, devices, kernels, engines, and problems."""

import os
import platform
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from ...version import __version__
from ..placement import default_device
from .kernels import (
    Gpu,
    KernelPackage,
    RuntimeUse,
    find_gpus,
    find_kernel_packages,
    kernel_problems,
    runtime_uses,
)
from .packages import Package, engines_in, installed_engines, required_packages

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
    settings: dict[str, str]
    problems: tuple[str, ...] = field(default=())
    optional: tuple[str, ...] = field(default=())  # extras that are not installed

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def doctor(engine_pythons: Sequence[str | Path] = ()) -> Environment:
    """Describe this environment, and find the engines in the environments that `engine_pythons`
    belong to. Problems are listed, not raised; only an entry of `engine_pythons` that is not a
    program is refused."""
    engines, engine_problems = _engines(engine_pythons)
    required, kernel_packages, gpu_list = required_packages(), find_kernel_packages(), find_gpus()
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
    engines, problems = installed_engines(), []
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
    """At most one text: PyTorch lacks CUDA though nvidia-smi is here, or has CUDA and finds no GPU.
    None on Apple's GPUs and on plain CPU machines."""
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
