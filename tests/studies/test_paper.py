"""results/paper.md lists every table, figure and theorem of the paper and matches the committed
results, and the scripts that measured them run on tiny checkpoints."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import statetrim as st
from helpers import tiny
from statetrim.runtime.loading import load_live

ROOT = Path(__file__).parents[2]
LEDGER = ROOT / "results" / "paper.md"
STUDIES = ROOT / "studies"
LABELS = ROOT / "tests" / "data" / "paper-labels.txt"
"""Those of the paper's tables, figures, theorems and algorithms, in its source."""
TYPES = [pytest.param("delta_net", marks=pytest.mark.slow), "gated_deltanet"]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of studies/paper by its name."""
    monkeypatch.syspath_prepend(STUDIES)
    monkeypatch.syspath_prepend(STUDIES / "paper")
    return importlib.import_module


@pytest.fixture(scope="module", params=TYPES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build(request.param, tmp_path_factory.mktemp(request.param) / "model")


def test_every_label_of_the_paper_is_in_the_ledger() -> None:
    labels, ledger = LABELS.read_text().split(), LEDGER.read_text()
    assert len(labels) > 30
    assert [label for label in labels if f"`{label}`" not in ledger] == []


def test_every_verdict_has_an_interval_and_says_what_would_have_changed_it() -> None:
    table = r"<!-- claims \w+ -->\n\n(.*?)\n\n<!-- end"
    for section in re.findall(table, LEDGER.read_text(), re.S):
        for line in section.splitlines()[2:]:
            claim, paper, figure, verdict, otherwise = line.strip("| ").split(" | ")
            assert paper and otherwise and verdict != "**not run**", claim
            assert re.search(r"\([-+]?[\d.e-]+(?:,| to) [-+]?[\d.e-]+\)", figure), claim


def one_hot(plan: st.Plan, channels: int) -> dict[int, torch.Tensor]:
    return {
        layer: torch.nn.functional.one_hot(kept, channels).double()
        for layer, kept in plan.axes["key"].kept.items()
    }


def test_a_projection_onto_channels_is_their_selection(
    script: Any, checkpoint: Path, tmp_path: Path
) -> None:
    """Folded before the convolution, and applied after SiLU."""
    pca, model = script("pca"), st.open(checkpoint)
    channels = model.geometry.head_k_dim
    plan = st.select(model, "rand", f"{channels // 2}x100%", seed=3)
    bases, ids = one_hot(plan, channels), torch.arange(1, 41)[None]
    with torch.inference_mode():
        cut = load_live(st.prune(model, plan, tmp_path / "cut")).logits(ids)
        folded = load_live(pca.folded(model, bases, tmp_path / "folded")).logits(ids)
        live = load_live(model)
        original_logits = live.logits(ids)
        with pca.projected(live, bases):
            projected = live.logits(ids)
        unhooked_logits = live.logits(ids)
    torch.testing.assert_close(folded, cut, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(projected, cut, atol=1e-4, rtol=1e-4)
    assert torch.equal(original_logits, unhooked_logits) and not torch.allclose(
        original_logits, cut, atol=1e-2
    )


def run(script: Any, monkeypatch: pytest.MonkeyPatch, name: str, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, arguments)])
    script(name).main()


@pytest.fixture
def common(checkpoint: Path, tmp_path: Path) -> list[object]:
    text = tiny.write_text(tmp_path / "train.jsonl", 6000)
    words = [json.loads(line)["text"] for line in text.read_text().splitlines()]
    (tmp_path / "test.txt").write_text(" ".join(words[:20]))
    small = ["--windows", 4, "--length", 32, "--tokens", 512, "--calibration-length", 64]
    return [checkpoint, "--text", text, "--test", tmp_path / "test.txt", *small]


def test_pca_runs_to_the_end_and_not_again(
    script: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    common: list[object],
    tmp_path: Path,
) -> None:
    options = [*common, "--samples", 1, "--results", tmp_path / "rows.jsonl"]
    run(script, monkeypatch, "pca", *options)
    rows = (tmp_path / "rows.jsonl").read_text()
    run(script, monkeypatch, "pca", *options)
    assert (tmp_path / "rows.jsonl").read_text() == rows
    assert capsys.readouterr().out.splitlines()[-1].startswith("0 of ")


@pytest.mark.slow
def test_quality_runs_to_the_end(
    script: Any, monkeypatch: pytest.MonkeyPatch, common: list[object], tmp_path: Path
) -> None:
    rows, work = tmp_path / "rows.jsonl", tmp_path / "work"
    quality = [*common, "--work", work, "--samples", 2, "--keep", 0.5, "--recovery-tokens", 1024]
    quality += ["--recovery-length", 32, "--recovery-skip", 1024, "--results", rows]
    run(script, monkeypatch, "quality", *quality)
    run(script, monkeypatch, "quality", *quality, "--scores", "q", "k", "--stages", "cut")
    quality_rows = [json.loads(line) for line in rows.read_text().splitlines()]
    assert {row["stage"] for row in quality_rows} == {"cut", "recovered"}
    assert {row["method"] for row in quality_rows} == {
        "none", "rand", "l1", "s_wanda", "grad", "drrqr",
    }  # fmt: skip
