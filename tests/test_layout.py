"""Sizes of folders, files and functions are within the limits of CONTRIBUTING.md."""

from pathlib import Path
from typing import Any

import pytest

TOOLS = Path(__file__).parents[1] / "tools"
LIMITS = {"folders": 16, "files": 400, "functions": 80}


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


def test_sizes_are_counted_as_a_reader_would(measured: Any, tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "one.py").write_text("def f():\n    def g():\n        pass\n\n\nclass A: ...\n")
    (tmp_path / "inner" / "two.py").write_text("x = 1")
    (tmp_path / "inner" / "table.json").write_text("{}\n" * 1000)
    sizes = measured.layout(tmp_path)
    assert sizes.folders == {".": 1, "inner": 2}
    assert sizes.files == {"one.py": 6, "inner/two.py": 1}
    assert sizes.functions == {"one.py:1 f": 3, "one.py:2 g": 2}
