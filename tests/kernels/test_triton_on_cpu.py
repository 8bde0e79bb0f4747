"""Triton kernels run on a CPU, as far as Triton's interpreter alone would fail them."""

import importlib.metadata
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers.modules import load_module

TOOL = Path(__file__).parents[2] / "tools" / "kernels" / "triton_on_cpu.py"


@pytest.fixture(scope="module")
def triton_on_cpu() -> Any:
    return load_module(TOOL)


def test_the_interpreter_computes_what_it_would_fail_without_the_changes() -> None:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed")
    worker = Path(__file__).with_name("small_kernels.py")
    done = subprocess.run([sys.executable, worker], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    differences = json.loads(done.stdout.splitlines()[-1])
    assert len(differences) == 7
    assert max(differences.values()) < 1e-5, differences


@pytest.mark.parametrize("version", ["3.7.1", "3.10.0", "4.0.0"])
def test_an_unknown_triton_is_refused(
    version: str, triton_on_cpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    with pytest.raises(RuntimeError, match=version):
        triton_on_cpu.install()


def test_a_triton_that_was_imported_before_is_refused(
    triton_on_cpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "3.9.0")
    monkeypatch.setitem(sys.modules, "triton", pytest)
    with pytest.raises(RuntimeError, match="imported before"):
        triton_on_cpu.install()
