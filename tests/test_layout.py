"""Sizes of folders, files and functions are within the limits of CONTRIBUTING.md."""

from pathlib import Path
from typing import Any

import pytest

TOOLS = Path(__file__).parents[1] / "tools"
LIMITS = {"folders": 24, "files": 400, "functions": 80}


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(TOOLS)
    import layout

    return layout


@pytest.mark.parametrize(("kind", "limit"), LIMITS.items())
def test_nothing_has_grown_too_large(measured: Any, kind: str, limit: int) -> None:
    sizes = getattr(measured.layout(measured.SOURCE), kind)
    assert len(sizes) > 20
    assert {name: size for name, size in sizes.items() if size > limit} == {}
