"""The result pages match the committed results: filling in their tables again changes nothing."""

import importlib
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STUDIES = (
    "demo", "methods", "paper/ledger", "parts", "precision", "quantised_matrix", "quantisers",
    "recall/tables", "recovery", "shapes", "snapshots", "speech", "two_axes", "uneven",
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


def test_checks_of_quantised_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool that ran, one whose checkpoints are refused, and a type that only llama.cpp reads."""
    monkeypatch.syspath_prepend(ROOT / "studies")
    script = importlib.import_module("quantisers")
    ran = {"original-X-FP8 perplexity": 250.004, "cut-X-FP8 perplexity": 287.5}
    agreed = {
        "original-X-FP8, text": 1.0,
        "original-X-FP8, continuations": 0.969,
        "cut-X-FP8, text": 0.75,
    }
    rows = {
        "X-FP8": {"evaluate": ran, "verify": {"agreed": agreed, "refusals": {}}},
        "llm-compressor-INT8": {
            "evaluate": {"refused": "cut-llm-compressor-INT8 has zero points"},
            "verify": {"agreed": {}, "refusals": {"cut": "`kernel` has zero points"}},
        },
        "Q8_0": {"verify": {"agreed": {"cut-none, text": 0.998}}},
    }
    assert script.checks(rows) == [
        ["X FP8", "250.00", "287.50", "100.0 %, 96.9 %", "75.0 %"],
        ["llm-compressor INT8", "refused", "refused", "refused", "refused"],
        ["Q8_0", "n/a", "n/a", "refused", "99.8 %"],
    ]
    assert script.sentences(rows) == "- `MODEL has zero points`\n- `kernel has zero points`"
