"""What commands print about results, also in a terminal of 80 columns, where no word is broken."""

import io
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import typer
from rich.console import Console
from typer.testing import CliRunner

import statetrim as st
from helpers.refusal import run
from statetrim.artifacts.scores import Score, Scores
from statetrim.artifacts.steps import RefitRecord
from statetrim.commands import app, terminal
from statetrim.commands.measures.evaluate import show_scores
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


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    """What was printed to a standard output of 80 columns."""
    file = io.StringIO()
    console = Console(file=file, width=80, markup=False, force_terminal=True, no_color=True)
    monkeypatch.setattr(terminal, "out", lambda: console)
    return lambda: re.sub(r"\x1b\[[\d;]*m", "", file.getvalue())


@pytest.mark.parametrize("seed", range(40))
def test_words_and_figures_stay_whole(seed: int, shown: Callable[[], str]) -> None:
    draw = random.Random(seed)

    def word() -> str:
        return "".join(draw.choices("abcxyz-_/", k=draw.randint(1, 24)))

    columns = draw.randint(1, 9)
    left = [number for number in range(columns) if draw.random() < 0.4]
    header = [word() for _ in range(columns)]
    rows = []
    for _ in range(draw.randint(1, 6)):
        row = []
        for number in range(columns):
            figure = f"{draw.random() * 10 ** draw.randint(0, 7):,.1f} MiB"
            row.append(" ".join(word() for _ in range(draw.randint(1, 5))))
            row[-1] = row[-1] if number in left else figure
        rows.append(row)
    terminal.print_table("title", header, rows, left=left)
    text = shown()
    assert max(map(len, text.splitlines())) <= 80
    shown_header = header if "━" in text else []  # a list names each cell, and not the first
    expected = {part for row in (shown_header, *rows) for cell in row for part in cell.split()}
    assert expected <= set(re.sub(r"[━-╿]", " ", text).split()), text
    for row in rows:
        for number, cell in enumerate(row):
            assert number in left or cell in text, "a figure and its unit stay together"


def test_few_models_show_their_settings_in_words(shown: Callable[[], str]) -> None:
    scores = [Score(name, "mqar", "pairs_127", "share", True, [0.5, 1.0]) for name in ("a", "b")]
    show_scores(Scores(["a", "b"], scores), [], "scores.json", as_json=False)
    assert "127 pairs" in shown()


def test_help_lists_the_options_of_trim_in_groups() -> None:
    text = CliRunner().invoke(app, ["trim", "--help"], env={"COLUMNS": "80"}).output
    headings = re.findall(r"^(\w[\w ]+):$", text, flags=re.MULTILINE)
    assert headings == [
        "Arguments", "What to keep", "Text and methods", "Repair after the cut",
        "What is measured", "How it is served", "Where it runs", "Options",
    ]  # fmt: skip
    sections = dict(zip(headings, re.split(r"^\w[\w ]+:$", text, flags=re.MULTILINE)[1:], strict=1))
    assert "--by-layer" in sections["What to keep"] and "--device " in sections["Where it runs"]
    command = typer.main.get_command(app).commands["trim"]  # type: ignore[attr-defined]
    for parameter in command.params:
        if parameter.param_type_name == "option":
            places = [name for name in headings if f"{parameter.opts[-1]} " in sections[name]]
            assert len(places) == 1, parameter.opts
