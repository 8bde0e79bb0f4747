"""A folder per page, with a local hub server and an engine in this process."""

import importlib
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from helpers import tiny
from helpers.doc_world import (
    EXAMPLE_LAYOUTS,
    EXAMPLE_QUANTIZED,
    HUB,
    WIDE,
    World,
    build_example_model,
)
from helpers.engine import InProcess
from helpers.loopback_hub import serving, use_hub
from helpers.tiny import Load


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Load:
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
    build: Load,
    done: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    quick_sensitivity: None,
) -> Iterator[Callable[[Path], World]]:
    """Returns a function from a page to its folder; hub and engine are local stand-ins."""
    monkeypatch.setattr(
        importlib.import_module("statetrim.verification.verify"), "run_engine", InProcess()
    )
    folder = tmp_path / "page"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr("statetrim.pipelines.shape_choice.MEASURED", 1)  # instead of three

    def on_the_hub(page: Path) -> World:
        if page.parent.name == "examples":
            # Qwen's own class reads merges, which the tokenizer of words does not have.
            words = PreTrainedTokenizerFast.from_pretrained
            monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", words)
            text = page.read_text(encoding="utf-8")
            for name in (*EXAMPLE_LAYOUTS, *EXAMPLE_QUANTIZED):
                if re.search(rf"{name}\s", text):
                    build_example_model(name, tmp_path / "hub" / name / "main")
        else:
            for name in HUB:
                shutil.copytree(build("qwen3_5_text"), tmp_path / "hub" / name / "main")
        return World(folder, page, build, done)

    with serving(tmp_path / "hub") as hub:
        use_hub(monkeypatch, hub.url, tmp_path / "cache", token="hf_test")
        yield on_the_hub
