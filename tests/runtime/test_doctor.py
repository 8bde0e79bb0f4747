"""`statetrim doctor`: this machine, simulated GPUs, and each kernel package as a stub."""

import importlib.metadata
import json
import platform
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import statetrim as st
from helpers import kernel_stubs
from helpers.pretended_cuda import pretended_cuda
from helpers.refusal import run
from statetrim.families import families
from statetrim.runtime import doctor as looked_at
from statetrim.runtime.packages import Package, required_packages

ROOT = Path(__file__).parents[2]
KERNELS = kernel_stubs.PACKAGES


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a GPU, and without packages with kernels except triton."""
    if torch.cuda.is_available():
        pytest.skip("there is a real GPU")
    for name in (*KERNELS, "kernels"):
        monkeypatch.setitem(sys.modules, name, None)


def use_of(environment: st.Environment, model_type: str) -> tuple[str | None, str, str]:
    use = next(use for use in environment.uses if model_type in use.model_types)
    return use.runtime, use.recurrence, use.convolution


def stub(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.delitem(sys.modules, package)
    before = set(sys.modules)
    kernel_stubs.install((package,))
    for name in set(sys.modules) - before:
        monkeypatch.setitem(sys.modules, name, sys.modules.pop(name))


@pytest.mark.usefixtures("bare")
def test_this_machine() -> None:
    environment = st.doctor()
    assert environment.python == platform.python_version()
    assert environment.device == "cpu" and environment.gpus == ()
    versions = {package.name: package.version for package in environment.packages}
    for name in ("torch", "transformers", "safetensors", "peft"):
        assert versions[name] == importlib.metadata.version(name)
    assert {package.name for package in environment.kernels if package.version} <= {"triton"}
    assert not any(package.used for package in environment.kernels)
    assert use_of(environment, "qwen3_next") == ("transformers", "PyTorch", "PyTorch")
    assert use_of(environment, "delta_net") == ("portable", "PyTorch", "PyTorch")
    assert use_of(environment, "gla") == (None, "", "")


def test_packages_for_quantised_checkpoints() -> None:
    environment, installed = st.doctor(), importlib.metadata.version("compressed-tensors")
    assert environment.quantizers["compressed-tensors"] == installed
    assert environment.quantizers["gptqmodel"] is None
    assert f"transformers loads those of FP8, compressed-tensors {installed}" in run(["doctor"])[2]
    listed = [name for use in environment.uses for name in use.model_types]
    assert sorted(listed) == sorted(families()), "every model type, once"


@pytest.mark.usefixtures("bare")
def test_text_and_json_say_the_same_and_nothing_private() -> None:
    code, _, text = run(["doctor"])
    assert code is None
    code, _, printed = run(["doctor", "--json"])
    assert code is None
    fields = json.loads(printed)
    assert fields == json.loads(json.dumps(st.doctor().as_json()))
    for package in fields["packages"]:
        assert package["name"] in text and (package["version"] or "no") in text
    for problem in fields["problems"]:
        assert f"problem: {problem}" in text
    for option in fields["optional"]:
        assert f"optional: {option}" in text
    assert bool(fields["problems"]) == ("no problem found" not in text)
    for private in (socket.gethostname(), str(Path.home()), sys.prefix, str(ROOT)):
        assert private not in text + printed


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("stubbed", KERNELS)
def test_each_kernel_alone_on_a_gpu(stubbed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stub(monkeypatch, stubbed)
    with pretended_cuda(1):
        environment = st.doctor()
    assert {package.name for package in environment.kernels if package.used} - {"triton"} == {
        stubbed
    }
    convolution = stubbed if stubbed == "causal_conv1d" else "PyTorch"
    for model_type, wanted in (("qwen3_next", "fla"), ("mamba2", "mamba_ssm")):
        recurrence = stubbed if stubbed == wanted else "PyTorch"
        assert use_of(environment, model_type) == ("transformers", recurrence, convolution)
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
    assert not [package for package in st.doctor().kernels if package.broken], (
        "not tried without a GPU"
    )
    with pretended_cuda(1):
        environment = st.doctor()
    (problem,) = (text for text in environment.problems if "does not import" in text)
    assert "causal_conv1d" in problem and "undefined symbol: _ZN3c10" in problem
    assert torch.__version__ in problem
    assert use_of(environment, "mamba2")[2] == "PyTorch"


def test_versions_out_of_range_and_missing_packages_are_problems() -> None:
    old = Package("transformers", "5.18.0", ">=5.19,<6", "models")
    assert old.problem and "transformers 5.18.0 is installed" in old.problem
    assert "pip install 'transformers>=5.19,<6'" in old.problem
    assert Package("transformers", "5.19.0", ">=5.19,<6", "models").problem is None
    missing = Package("peft", None, ">=0.18", "recover").problem
    assert missing and missing.endswith('pip install "statetrim[recover]"')
    assert Package("flash-linear-attention", None, ">=0.6", "fla").problem is None, "GPUs only"


def test_an_extra_that_is_not_installed_is_no_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = (
        Package("torch", None, ">=2.8"),
        Package("peft", None, ">=0.18", "recover"),
        Package("lm-eval", "0.1", ">=0.4.12", "evaluate"),
    )
    monkeypatch.setattr("statetrim.runtime.doctor.required_packages", lambda: installed)
    environment = st.doctor()
    (option,) = environment.optional
    assert option.startswith("peft is not installed")
    assert [text.split()[0] for text in environment.problems[:2]] == ["torch", "lm-eval"]
    assert not any("peft" in text for text in environment.problems)


def test_the_ranges_are_those_of_the_project() -> None:
    assert {"torch", "transformers", "lm-eval", "peft", "matplotlib"} <= {
        p.name for p in required_packages()
    }
    assert all(package.problem is None for package in required_packages()), (
        "this environment is a sound one"
    )


@pytest.fixture
def foreign_python(tmp_path: Path) -> Iterator[Path]:
    """The Python of an environment with vLLM: an empty package with its metadata."""
    program = tmp_path / "bin" / "python"
    metadata = tmp_path / "packages" / "vllm-9.9.9.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 9.9.9\n")
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\nexec {sys.executable} -c "import sys; '
        f'sys.path.insert(0, \'{tmp_path / "packages"}\'); exec(sys.argv[1])" "$3"\n'
    )
    program.chmod(0o755)
    yield program


def test_engines_of_other_environments(foreign_python: Path, tmp_path: Path) -> None:
    environment = st.doctor([foreign_python])
    assert environment.engines["vLLM"] == "9.9.9"
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho 'Error: no such library'; exit 3\n")
    broken.chmod(0o755)
    (problem,) = (text for text in st.doctor([broken]).problems if "--engine-python" in text)
    assert problem.endswith("does not answer: Error: no such library")


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
    assert not looked_at.find_gpus()
