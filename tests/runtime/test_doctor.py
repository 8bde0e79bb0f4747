"""`statetrim doctor`: this machine, simulated GPUs, and each kernel package as a stub."""

import importlib.metadata
import json
import socket
import sys
from pathlib import Path

import pytest
import torch

import statetrim as st
from helpers import kernel_stubs
from helpers.pretended_cuda import pretended_cuda
from helpers.refusal import run
from statetrim.runtime.doctor import Package, required_packages

ROOT = Path(__file__).parents[2]
KERNELS = kernel_stubs.PACKAGES


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a GPU, and without packages with kernels."""
    if torch.cuda.is_available():
        pytest.skip("there is a real GPU")
    for name in KERNELS:
        monkeypatch.setitem(sys.modules, name, None)


def stub(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.delitem(sys.modules, package)
    before = set(sys.modules)
    kernel_stubs.install((package,))
    for name in set(sys.modules) - before:
        monkeypatch.setitem(sys.modules, name, sys.modules.pop(name))


@pytest.mark.usefixtures("bare")
def test_text_and_json_say_the_same_and_nothing_private() -> None:
    code, _, text = run(["doctor"])
    assert code is None
    code, _, printed = run(["doctor", "--json"])
    assert code is None
    fields = json.loads(printed)
    assert fields == json.loads(json.dumps(st.doctor().as_json()))
    assert fields["device"] == "cpu" and fields["gpus"] == []
    assert fields["system"]["torch_version"] == torch.__version__
    versions = {package["name"]: package["version"] for package in fields["packages"]}
    for name in ("torch", "transformers", "safetensors", "peft"):
        assert versions[name] == importlib.metadata.version(name)
    assert fields["kernels"] == dict.fromkeys(KERNELS, "not installed")
    for package in fields["packages"]:
        assert package["name"] in text and (package["version"] or "no") in text
    for problem in fields["problems"]:
        assert f"problem: {problem}" in text
    assert bool(fields["problems"]) == ("no problem found" not in text)
    for private in (socket.gethostname(), str(Path.home()), sys.prefix, str(ROOT)):
        assert private not in text + printed


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("stubbed", KERNELS)
def test_each_kernel_alone_on_a_gpu(stubbed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stub(monkeypatch, stubbed)
    with pretended_cuda(1):
        environment = st.doctor()
    assert environment.kernels == dict.fromkeys(KERNELS, "not installed") | {stubbed: "imports"}
    assert environment.gpus == ("pretended",)
    named = [
        name for name in KERNELS for text in environment.problems if text.startswith(f"{name} is")
    ]
    assert named == [name for name in KERNELS if name != stubbed]


@pytest.mark.usefixtures("bare")
def test_a_kernel_that_does_not_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For example one built for another torch; transformers would ignore it without a warning."""
    (tmp_path / "causal_conv1d.py").write_text("raise ImportError('undefined symbol: _ZN3c10')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "causal_conv1d")
    assert st.doctor().kernels["causal_conv1d"] == "not used without a GPU"
    with pretended_cuda(1):
        environment = st.doctor()
    (problem,) = (text for text in environment.problems if "does not import" in text)
    assert "causal_conv1d" in problem and "undefined symbol: _ZN3c10" in problem
    assert torch.__version__ in problem


def test_versions_out_of_range_are_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = (
        Package("transformers", "5.18.0", ">=5.19,<6", "models"),
        Package("torch", "2.8.0", ">=2.8"),
        Package("peft", None, ">=0.18", "recover"),  # the table says that it is missing
    )
    monkeypatch.setattr("statetrim.runtime.doctor.required_packages", lambda: listed)
    old, *others = st.doctor().problems
    assert "transformers 5.18.0 is installed" in old
    assert "pip install 'transformers>=5.19,<6'" in old
    assert not any("peft" in text or text.startswith("torch 2.8.0") for text in others)


def test_the_ranges_are_those_of_the_project() -> None:
    assert {"torch", "transformers", "lm-eval", "peft", "matplotlib"} <= {
        p.name for p in required_packages()
    }
    assert all(package.problem is None for package in required_packages()), (
        "this environment is a sound one"
    )


def test_a_driver_without_cuda_in_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert any("built without CUDA" in text for text in st.doctor().problems)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    assert any("finds no GPU" in text for text in st.doctor().problems)
