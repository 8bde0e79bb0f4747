"""What a person who helps you would ask first: versions, devices, kernels, engines."""

import os
import platform
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from ...version import __version__
from ..placement import own_device
from .kernels import Gpu, Kernels, Use, gpus, kernel_problems, kernels, uses
from .packages import Package, engines_here, engines_of, packages

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
    device: str  # where models run unless another is asked for
    gpus: tuple[Gpu, ...]
    cuda: str | None  # that PyTorch was built for
    kernels: tuple[Kernels, ...]
    uses: tuple[Use, ...]
    engines: dict[str, str | None]  # None: not found
    settings: dict[str, str]
    problems: tuple[str, ...] = field(default=())
    optional: tuple[str, ...] = field(default=())  # extras that are not installed

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def doctor(engine_pythons: Sequence[str | Path] = ()) -> Environment:
    """Describe what is installed here, and in the environments that `engine_pythons` belong to."""
    engines, silent = _engines([Path(python) for python in engine_pythons])
    asked_for, found, cards = packages(), kernels(), gpus()
    missing = [one.problem for one in asked_for if one.extra and one.version is None]
    problems = [one.problem for one in asked_for if not (one.extra and one.version is None)]
    return Environment(
        statetrim=__version__,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        cores=os.cpu_count() or 1,
        packages=asked_for,
        device=str(own_device()),
        gpus=cards,
        cuda=torch.version.cuda,
        kernels=found,
        uses=uses(found),
        engines=engines,
        settings={name: os.environ[name] for name in SETTINGS if name in os.environ},
        problems=(
            *(one for one in problems if one),
            *_device_problems(cards),
            *kernel_problems(found, bool(cards)),
            *silent,
        ),
        optional=tuple(one for one in missing if one),
    )


def _engines(pythons: Sequence[Path]) -> tuple[dict[str, str | None], list[str]]:
    """Versions, and what is wrong with the environments that gave none."""
    engines, silent = engines_here(), []
    if engines["llama.cpp"] is None and shutil.which("llama-server"):
        engines["llama.cpp"] = "llama-server"
    for number, python in enumerate(pythons, 1):
        found = engines_of(python)
        if isinstance(found, str):
            silent.append(f"the Python of --engine-python {number} does not answer: {found}")
        elif not any(found.values()):
            known = ", ".join(engines)
            silent.append(f"the environment of --engine-python {number} has none of {known}")
        else:
            engines |= {name: version for name, version in found.items() if version}
    return engines, silent


def _device_problems(cards: Sequence[Gpu]) -> Iterator[str]:
    built = f"PyTorch {torch.__version__}"
    if cards or torch.backends.mps.is_available():
        return
    if shutil.which("nvidia-smi") and not torch.version.cuda:
        yield f"{built} was built without CUDA, so the GPU stays idle: install a CUDA build"
    elif torch.version.cuda:
        yield (
            f"{built} was built for CUDA {torch.version.cuda} and finds no GPU, so models run on "
            f"the CPU: check nvidia-smi and CUDA_VISIBLE_DEVICES"
        )
