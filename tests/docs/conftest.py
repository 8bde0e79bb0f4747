"""A folder for a page, with a hub and engines that are in this process."""

import importlib
import shutil
from collections.abc import Callable, Iterator
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
    """Models of the hub come from the loopback, and engines answer in this process."""
    monkeypatch.setattr(
        importlib.import_module("statetrim.verification.verify"), "ask", InProcess()
    )
    folder = tmp_path / "page"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr("statetrim.pipelines.shape_choice.MEASURED", 1)  # of three
    defaults: dict[str, Any] = sensitivity.__kwdefaults__ or {}
    for option, value in {"calibration_tokens": 1024, "windows": 2, "rows": 2}.items():
        monkeypatch.setitem(defaults, option, value)  # no options of the command
    for name in HUB:
        shutil.copytree(build("qwen3_5_text"), tmp_path / "hub" / name / "main")
    with serving(tmp_path / "hub") as hub:
        use_hub(monkeypatch, hub.url, tmp_path / "cache", token="hf_test")
        yield lambda page: World(folder, page, build, done)
