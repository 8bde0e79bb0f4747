"""A folder per page, with a local hub server and an engine in this process."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from helpers import tiny
from helpers.doc_world import HUB, QUANTIZED_HUB, WIDE, World
from helpers.engine import InProcess
from helpers.loopback_hub import serving, use_hub
from helpers.quantized import FORMATS, quantize_checkpoint
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
    monkeypatch.setattr("statetrim.verification.verify.run_engine", InProcess())
    folder = tmp_path / "page"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr("statetrim.pipelines.shape_choice.MEASURED", 1)  # instead of three

    def on_the_hub(page: Path) -> World:
        model = build("qwen3_5_text")
        for name in (*HUB, QUANTIZED_HUB):
            (tmp_path / "hub" / name).mkdir(parents=True)
        for name in HUB:
            (tmp_path / "hub" / name / "main").symlink_to(model)
        quantized = tmp_path / "hub" / QUANTIZED_HUB / "main"
        if QUANTIZED_HUB in page.read_text(encoding="utf-8"):
            quantize_checkpoint(model, quantized, FORMATS["fine-grained fp8"])
        return World(folder, page, build, done)

    with serving(tmp_path / "hub") as hub:
        use_hub(monkeypatch, hub.url, tmp_path / "cache", token="hf_test")
        yield on_the_hub
