"""What commands print about results, from records written by hand."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import statetrim as st
from helpers.refusal import run
from statetrim.artifacts.steps import RefitRecord
from statetrim.commands.steps.calibrate import show_statistics
from statetrim.commands.steps.recover import _evaluate_command, show_recovery
from statetrim.recovery.options import RecoverRunOptions
from statetrim.surgery.refit import refit


def shown_statistics(squares: list[float], capsys: pytest.CaptureFixture[str]) -> str:
    layers = {
        number: st.LayerStatistics(10, {"output_square": torch.tensor([10 * square])})
        for number, square in enumerate(squares)
    }
    statistics: Any = SimpleNamespace(layers=layers, generated={}, sum_names={"output_square"})
    model: Any = SimpleNamespace(geometry=SimpleNamespace(num_k_heads=2))
    show_statistics(statistics, model, "statistics.safetensors", as_json=False)
    return " ".join(capsys.readouterr().err.split())


def test_a_small_output_is_explained_and_a_usual_one_not_mentioned(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert shown_statistics([1e-3, 2e-6], capsys) == ""
    note = shown_statistics([1e-3, 2e-9, 3e-8], capsys)
    assert note.startswith("in 2 of 3 layers") and "2e-09" in note and "eps" in note


def test_recovery_shows_means_of_both_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Losses of single batches are noisy, so means are shown; here the last loss is the worst."""
    losses = [2.0, 4.0, *[2.5] * 16, 1.0, 4.5]
    curve = [{"loss": loss, "tokens": 64 * n} for n, loss in enumerate(losses, 1)]
    record = {"format": "statetrim recover", "version": 1, "curve": curve}
    record |= {"coverage": {}, "trained_tensors": ["a"]}
    (tmp_path / "statetrim").mkdir()
    (tmp_path / "statetrim" / "recover.json").write_text(json.dumps(record))
    recovered: Any = SimpleNamespace(path=tmp_path)
    show_recovery(recovered, "OUT", as_json=False)
    text = capsys.readouterr().out
    row = next(line for line in text.splitlines() if "3.0000" in line)
    assert "2.7500" in row and "first 2 steps" in text and "last 2 steps" in text


def test_recovery_names_the_command_that_measures_it_on_other_text(text: Path) -> None:
    sizes: Any = {"skip": "8k", "tokens": "32k"}
    options = RecoverRunOptions(text=text, teacher="MODEL", out="OUT", **sizes)
    assert _evaluate_command(options) == (
        f"statetrim evaluate OUT --baseline MODEL --tasks text,mqar --text {text} --skip 40960 "
        f"-o OUT.json"
    )


def test_a_layer_that_a_cut_leaves_exact_has_no_change_in_percent(
    checkpoint: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = {"0": {"before": 0.5, "after": 0.25}, "1": {"before": 0.0, "after": 0.0}}
    (tmp_path / "statetrim").mkdir()
    RefitRecord(layers=layers).save(tmp_path / "statetrim" / "refit.json")
    fitted = SimpleNamespace(path=tmp_path)
    monkeypatch.setattr(refit, "run", lambda model, options: fitted)
    model, statistics = str(checkpoint("delta_net")), str(tmp_path / "statetrim" / "refit.json")
    code, err, out = run(["refit", model, "--statistics", statistics, "-o", "OUT"])
    assert code is None, err
    assert re.search(r"50.00%.*25.00%.*-50", out) and re.search(r"1 .*0.00%.*0.00%", out)
