"""A folder per page, with a local hub server and an engine in this process."""

import importlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from helpers import tiny
from helpers.doc_world import HUB, WIDE, World
from helpers.engine import InProcess
from helpers.loopback_hub import serving, use_hub
from statetrim.pipelines.sensitivity import sensitivity


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    root = tmp_path_factory.mktemp("wide")

    def get(kind: str) -> Path:
        folder = root / kind
        return folder if folder.exists() else tiny.build(kind, folder, shard_size="1MB", **WIDE)

    return get


@pytest.fixture(scope="session")
def done() -> dict[str, Path]:
    return {}


@pytest.fixture
def world(
    build: Callable[[str], Path],
    done: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[[Path], World]]:
    """Returns a function from a page to its folder; hub and engine are local stand-ins."""
    monkeypatch.setattr(
        importlib.import_module("statetrim.verification.verify"), "run_engine", InProcess()
    )
    folder = tmp_path / "page"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr("statetrim.pipelines.shape_choice.MEASURED", 1)  # instead of three
    run_sensitivity = sensitivity.run

    def quick_sensitivity(model: Any, options: Any) -> Any:
        small = replace(options, calibration_tokens=1024, windows=2, rows=2)
        return run_sensitivity(model, small)

    monkeypatch.setattr(sensitivity, "run", quick_sensitivity)
    for name in HUB:
        shutil.copytree(build("qwen3_5_text"), tmp_path / "hub" / name / "main")
    with serving(tmp_path / "hub") as hub:
        use_hub(monkeypatch, hub.url, tmp_path / "cache", token="hf_test")
        yield lambda page: World(folder, page, build, done)
