"""The built wheel in a fresh virtual environment.

The environment holds nothing but the wheel. Its dependencies (torch above all) are those of the
environment the tests run in: a `.pth` file adds that one's site-packages behind the fresh one's.
Python does not follow `.pth` files there, so an editable install of statetrim stays invisible.

Imports take longer than most commands on a tiny model, so plain `statetrim` commands and Python
scripts run in forks of one process of that environment; what needs a shell or another program gets
a process of its own.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from helpers.forker import Forker, modules

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class FreshEnvironment:
    """A virtual environment that has statetrim only as a wheel."""

    python: Path
    forker: Forker

    def run(self, command: str, folder: Path) -> subprocess.CompletedProcess[str]:
        """A command as a user would type it in that environment."""
        program, *arguments = shlex.split(command)
        script = program == "python" and arguments[0].endswith(".py")
        if (program != "statetrim" and not script) or set(command) & set("|&;<>$`*?#~()"):
            return in_shell(self.python, command, folder)
        result = self.forker.run(arguments, folder=folder, script=script)
        return subprocess.CompletedProcess(command, result["code"], result["out"], result["err"])


def environment(python: Path) -> dict[str, str]:
    inherited = {name: v for name, v in os.environ.items() if name != "PYTHONPATH"}
    return {**inherited, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}


def in_shell(python: Path, command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    options: Any = {"shell": True, "cwd": folder, "env": environment(python)}
    return subprocess.run(command, capture_output=True, text=True, **options)


@pytest.fixture(scope="session")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FreshEnvironment]:
    """The environment that STATETRIM_PYTHON names (tools/check_release.py), or else a new one."""
    folder = tmp_path_factory.mktemp("wheel")
    python = Path(os.environ.get("STATETRIM_PYTHON") or installed_wheel(folder))
    import_check = in_shell(
        python, "python -c 'import statetrim; print(statetrim.__file__)'", folder
    )
    place = Path(import_check.stdout.strip())
    assert place.is_relative_to(python.parents[1] / "lib"), import_check.stderr
    version_check = in_shell(python, "statetrim --version", folder)  # the one that pip wrote
    assert version_check.returncode == 0, version_check.stderr
    forker = Forker(*modules(), python=python, environment=environment(python))
    yield FreshEnvironment(python, forker)
    forker.close()


def installed_wheel(folder: Path) -> Path:
    """The Python of a new environment with nothing but the wheel."""
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT]
    subprocess.run(build, check=True, cwd=folder)
    (wheel,) = folder.glob("statetrim-*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    python = folder / "venv" / "bin" / "python"
    install = [*pip, "--python", python, "install", "--no-deps", "--no-index", wheel]
    subprocess.run(install, check=True, cwd=folder)
    (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python
