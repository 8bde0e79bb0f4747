"""The result pages match the committed results: filling in their tables again changes nothing."""

import importlib
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STUDIES = (
    "demo", "methods", "paper/ledger", "parts", "precision", "quantised_matrix", "quantisers",
    "prefix_replay", "recall/tables", "recovery", "shapes", "snapshots", "two_axes", "uneven",
)  # fmt: skip


@pytest.mark.parametrize("name", STUDIES)
def test_tables_follow_from_the_rows(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, before = tmp_path / "results", dict[Path, str]()
    shutil.copytree(ROOT / "results", results, ignore=shutil.ignore_patterns("*.png", "upstream"))
    shutil.copy(ROOT / "README.md", tmp_path)
    for page in tmp_path.rglob("*.md"):
        before[page] = page.read_text()
    path = ROOT / "studies" / name
    monkeypatch.syspath_prepend(ROOT / "studies")
    monkeypatch.syspath_prepend(path.parent)
    script = importlib.import_module(path.name)
    monkeypatch.setattr(script, "draw", lambda *_: None, raising=False)
    script.page(results)
    assert {page: page.read_text() for page in before} == before
