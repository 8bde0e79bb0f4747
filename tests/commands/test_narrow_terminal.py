"""Tables in a terminal of 80 columns: no word and no figure is broken, and nothing is lost."""

import io
import random
import re
from collections.abc import Callable

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from statetrim.artifacts.scores import Score, Scores
from statetrim.commands import app, terminal
from statetrim.commands.measures.evaluate import show_scores


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    """What was printed to a standard output of 80 columns."""
    file = io.StringIO()
    console = Console(file=file, width=80, markup=False, force_terminal=True, no_color=True)
    monkeypatch.setattr(terminal, "out", lambda: console)
    return lambda: re.sub(r"\x1b\[[\d;]*m", "", file.getvalue())


def words_of(text: str) -> set[str]:
    return set(re.sub(r"[━-╿]", " ", text).split())


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
    assert expected <= words_of(text), text
    for row in rows:
        for number, cell in enumerate(row):
            assert number in left or cell in text, "a figure and its unit stay together"


def test_the_scores_of_seven_models_fit(shown: Callable[[], str]) -> None:
    models = ["tiny-qwen3_5_hybrid", *(f"tiny-qwen3_5_hybrid-{n}x64" for n in range(10, 70, 10))]
    scores = []
    for model in models:
        scores.append(Score(model, "text", "perplexity", "perplexity", False, [-6.1, -6.2], [1, 1]))
        for metric in ("accuracy", "pairs_4", "pairs_127", "pairs_16_in_512"):
            scores.append(Score(model, "mqar", metric, "share", True, [0.5, 1.0]))
    show_scores(Scores(models, scores), [], "scores.json", as_json=False)
    text = shown()
    assert max(map(len, text.splitlines())) <= 80
    for model in models:
        row = next(line for line in text.splitlines() if model in line)
        assert "75.0%" in row and re.search(r"\d\.\d\d ", row), "one row per model"


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
