"""The built wheel in a fresh virtual environment; import the fixture by name.

The environment holds nothing but the wheel. Its dependencies (torch above all) are those of the
environment the tests run in: a `.pth` file adds that one's site-packages behind the fresh one's.
Python does not follow `.pth` files there, so an editable install of statetrim stays invisible.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Fresh:
    """A virtual environment that has statetrim only as a wheel."""

    python: Path

    def run(self, command: str, folder: Path) -> subprocess.CompletedProcess[str]:
        """A shell command as a user would type it in that environment."""
        outside = {name: v for name, v in os.environ.items() if name != "PYTHONPATH"}
        path = f"{self.python.parent}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(
            command,
            shell=True,
            cwd=folder,
            env={**outside, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture(scope="session")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Fresh:
    folder = tmp_path_factory.mktemp("wheel")
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
    made = Fresh(python)
    where = made.run("python -c 'import statetrim; print(statetrim.__file__)'", folder)
    assert Path(where.stdout.strip()).is_relative_to(packages), where.stderr
    return made
