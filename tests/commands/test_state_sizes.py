"""State sizes are shown for float32 and bfloat16, with and without the cut."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import statetrim as st
from helpers.refusal import run
from statetrim.artifacts.sweep import Point, Sweep
from statetrim.commands.trimming.sweep import show_sweep

Load = Callable[[str], Path]
WHOLE, HALF, QUARTER = "3.0 KiB", "1.5 KiB", "0.8 KiB"  # 768 numbers of 4 bytes, and so on


@pytest.fixture
def model(checkpoint: Load) -> Path:
    path = checkpoint("qwen3_next")
    numel = st.open(path).geometry.state_numel
    assert (f"{4 * numel / 1024:.1f} KiB", f"{2 * numel / 1024:.1f} KiB") == (WHOLE, HALF)
    return path


def figures(text: str, row: str) -> list[str]:
    line = next(line for line in text.splitlines() if row in line)
    return re.findall(r"[\d.]+ KiB", line)


def test_inspect_and_prune_have_a_row_for_it(model: Path, tmp_path: Path) -> None:
    _, _, shown = run(["inspect", str(model), "--keep", "6"])
    st.select(model, "l1", 6).save(tmp_path / "plan.json")
    prune = ["prune", str(model), str(tmp_path / "plan.json"), "-o", str(tmp_path / "out")]
    _, _, pruned = run([*prune, "--dry-run"])
    for text in (shown, pruned):
        whole, cut = figures(text, "per sequence, float32")
        half, both = figures(text, "in bfloat16 (an engine option)")
        assert (whole, cut, half) == (WHOLE, HALF, HALF) and both == QUARTER
    _, _, json_text = run([*prune, "--dry-run", "--json"])
    sizes = json.loads(json_text)
    assert [2 * x for x in sizes["state_bytes_bfloat16"]] == sizes["state_bytes"]


def test_nothing_says_of_a_cut_that_it_needs_no_cut(model: Path, tmp_path: Path) -> None:
    """`inspect` of a cut shows only its own sizes."""
    small = st.prune(model, st.select(model, "l1", 6), tmp_path / "small")
    _, _, shown = run(["inspect", str(small.path)])
    assert figures(shown, "in bfloat16") == [QUARTER]
    assert "needs no cut" not in shown + (small.path / "README.md").read_text()


def test_the_plans_of_trim_and_sweep_have_it(model: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("words")
    words = ["trim", str(model), "--text", str(text), "--dry-run", "-o", str(tmp_path / "out")]
    _, stderr, _ = run([*words, "--keep", "6"])
    expected = f"{WHOLE} -> {HALF} in float32; {HALF} -> {QUARTER} in bfloat16 (an engine option"
    assert f"recurrent state per sequence: {expected}, with or without the cut)" in stderr
    for way in (["--state", "0.5"], ["--sweep", "6,6x4"]):
        _, _, plan = run([*words, *way])
        assert figures(plan, "no cut") == [WHOLE, HALF]
        assert figures(plan, "50%") == [HALF, QUARTER]


def test_the_table_of_a_sweep_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    points = [Point(12, 8, "none", 2048, {}), Point(6, 8, "l1", 1024, {})]
    show_sweep(Sweep("m", points, {}), "OUT", as_json=False)
    shown = capsys.readouterr().out
    assert figures(shown, "12 x 8") == ["2.0 KiB", "1.0 KiB"]
    assert figures(shown, "6 x 8") == ["1.0 KiB", "0.5 KiB"]
