"""A summary for bug reports: versions, GPUs, kernels, and any problems."""

import importlib
import importlib.util
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Any

import torch
from packaging.requirements import Requirement
from torch.utils import collect_env

from ..version import __version__
from .loading import GPU_KERNELS
from .placement import default_device

EXTRAS = ("", "models", "evaluate", "recover", "report")


@dataclass(frozen=True)
class Package:
    """A package that statetrim or one of its extras requires."""

    name: str
    version: str | None  # None: not installed
    allowed: str  # ">=5.19,<6"
    extra: str = ""

    @property
    def problem(self) -> str | None:
        """What is wrong with the installed version, and how to fix it; None if nothing is."""
        allowed = Requirement(self.name + self.allowed).specifier
        if self.version is None or allowed.contains(self.version, prereleases=True):
            return None
        return (
            f"{self.name} {self.version} is installed, and statetrim is tested with "
            f"{self.allowed}: pip install '{self.name}{self.allowed}'"
        )


@dataclass(frozen=True)
class Environment:
    """What is installed, and any problems. It contains no paths and no machine names, so it can be
    shared."""

    statetrim: str
    system: dict[str, str | None]
    device: str  # the default device of models
    gpus: tuple[str, ...]
    packages: tuple[Package, ...]
    kernels: dict[str, str]  # package -> "imports", "not installed", or why it does not import
    problems: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def doctor() -> Environment:
    """Describe this environment. Problems are listed, not raised."""
    packages = required_packages()
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    kernels = {module: _try_import(module) for module in GPU_KERNELS}
    versions = [package.problem for package in packages if package.problem is not None]
    return Environment(
        statetrim=__version__,
        system=_system(),
        device=str(default_device()),
        gpus=tuple(map(torch.cuda.get_device_name, range(num_gpus))),
        packages=packages,
        kernels=kernels,
        problems=(*versions, *_device_problems(), *_kernel_problems(kernels)),
    )


def _system() -> dict[str, str | None]:
    """A part of what `torch.utils.collect_env` lists, which also runs pip, which takes seconds."""
    torch_report: Any = collect_env
    return {
        "os": torch_report.get_os(torch_report.run),
        "python_version": sys.version.replace("\n", ""),
        "torch_version": torch.__version__,
        "cuda_compiled_version": torch.version.cuda,
        "nvidia_driver_version": torch_report.get_nvidia_driver_version(torch_report.run),
    }


def required_packages() -> tuple[Package, ...]:
    """The requirements in statetrim's metadata, each under the first extra that has it."""
    try:
        requirements = [Requirement(text) for text in requires("statetrim") or []]
    except PackageNotFoundError:
        return ()
    packages = dict[str, Package]()
    for extra in EXTRAS:
        for requirement in requirements:
            applies = requirement.marker is None or requirement.marker.evaluate({"extra": extra})
            name = requirement.name
            if applies and name not in (*packages, "statetrim"):
                allowed = ",".join(sorted(map(str, requirement.specifier), reverse=True))
                packages[name] = Package(name, _installed_version(name), allowed, extra)
    return tuple(packages.values())


def _installed_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _try_import(module: str) -> str:
    """Whether a package with kernels imports. It is not tried without a GPU: transformers would
    take its kernels from then on, which fail there."""
    if importlib.util.find_spec(module) is None:
        return "not installed"
    if default_device().type != "cuda":
        return "not used without a GPU"
    try:
        importlib.import_module(module)
    except Exception as error:  # e.g. built for another torch: transformers would not warn
        return " ".join(f"{type(error).__name__}: {error}".split())[:200]
    return "imports"


def _kernel_problems(kernels: dict[str, str]) -> Iterator[str]:
    """Packages that are missing or broken on a GPU, where models run without them, but slowly."""
    if default_device().type != "cuda":
        return
    for module, outcome in kernels.items():
        if outcome == "not installed":
            yield f"{module} is not installed, so its kernels run in PyTorch, which is slow"
        elif outcome != "imports":
            yield (
                f"{module} is installed but does not import ({outcome}): install a build for "
                f"PyTorch {torch.__version__}"
            )


def _device_problems() -> Iterator[str]:
    """At most one text: PyTorch lacks CUDA though nvidia-smi is here, or it finds no GPU."""
    built = f"PyTorch {torch.__version__}"
    if torch.cuda.is_available() or torch.backends.mps.is_available():
        return
    if shutil.which("nvidia-smi") and not torch.version.cuda:
        yield f"{built} was built without CUDA, so the GPU stays idle: install a CUDA build"
    elif torch.version.cuda:
        yield (
            f"{built} was built for CUDA {torch.version.cuda} and finds no GPU, so models run on "
            f"the CPU: check nvidia-smi and CUDA_VISIBLE_DEVICES"
        )
