"""The result pages match the committed results: filling in their tables again changes nothing."""

import importlib
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILL_COMMANDS = {  # page -> scripts that fill its tables, with their result files
    "methods.md": [("plot_methods", "methods.jsonl")],
    "parts.md": [("table_parts", "parts.jsonl")],
    "precision.md": [("plot_precision", "precision.jsonl")],
    "quantised.md": [
        ("table_quantised", "quantised.json"),
        ("table_quantisers", "quantise-cut.json", "quantise-gguf.json", "quantise-check.json"),
    ],
    "recall.md": [("tables", "recall")],
    "recovery.md": [("plot_recovery", "recovery.jsonl")],
    "snapshots.md": [("table_snapshots", "snapshots.jsonl")],
    "speech.md": [("plot_speech", "speech.jsonl", "speech-recovery.jsonl")],
    "shapes.md": [("plot_shapes", "shapes.jsonl", "uneven.jsonl")],
    "two-axes.md": [("plot_axes", "two-axes.jsonl"), ("tables", "recall")],
    "uneven.md": [
        ("plot_uneven", "uneven.jsonl", "uneven-capacity.json"),
        ("table_pages", "pages.jsonl", "uneven.jsonl", "two-hops.jsonl"),
        ("tables", "uneven-recall"),
    ],
}


@pytest.mark.parametrize("page", FILL_COMMANDS)
def test_tables_follow_from_the_rows(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / page
    shutil.copy(ROOT / "results" / page, copy)
    monkeypatch.syspath_prepend(ROOT / "studies")
    monkeypatch.syspath_prepend(ROOT / "studies" / "recall")
    for name, *rows in FILL_COMMANDS[page]:
        script = importlib.import_module(name)
        if name.startswith("plot_"):
            monkeypatch.setattr(script, "draw", lambda *_: None)
        words = [*(str(ROOT / "results" / row) for row in rows), str(copy)]
        monkeypatch.setattr(sys, "argv", [name, *words])
        script.main()
    assert copy.read_text() == (ROOT / "results" / page).read_text()


def test_checks_of_quantised_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool that ran, one whose checkpoints are refused, and a type that only llama.cpp reads."""
    monkeypatch.syspath_prepend(ROOT / "studies")
    script = importlib.import_module("table_quantisers")
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
