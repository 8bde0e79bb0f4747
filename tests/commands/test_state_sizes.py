"""State sizes name their dtype, with and without the cut."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import statetrim as st
from helpers.refusal import run

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
    _, _, shown = run(["inspect", str(model), "--to", "6x100%"])
    st.select(model, "l1", "6x100%").save(tmp_path / "plan.json")
    prune = ["prune", str(model), str(tmp_path / "plan.json"), "-o", str(tmp_path / "out")]
    _, _, pruned = run([*prune, "--dry-run"])
    for text in (shown, pruned):
        whole, cut = figures(text, "per sequence, float32")
        half, both = figures(text, "the same in bfloat16")
        assert (whole, cut, half) == (WHOLE, HALF, HALF) and both == QUARTER
    _, _, json_text = run([*prune, "--dry-run", "--json"])
    sizes = json.loads(json_text)
    assert [2 * x for x in sizes["state_bytes_bfloat16"]] == sizes["state_bytes"]


def test_nothing_says_of_a_cut_that_it_needs_no_cut(model: Path, tmp_path: Path) -> None:
    """`inspect` of a cut shows only its own sizes."""
    small = st.prune(model, st.select(model, "l1", "6x100%"), tmp_path / "small")
    _, _, shown = run(["inspect", str(small.path), "--verbose"])
    assert figures(shown, "in bfloat16") == [QUARTER]
    assert "needs no cut" not in shown + (small.path / "README.md").read_text()


def test_the_plans_of_one_shape_and_of_several_have_it(
    model: Path, text: Path, tmp_path: Path
) -> None:
    words = ["trim", str(model), "--text", str(text), "--dry-run", "-o", str(tmp_path / "out")]
    words += ["--tokens", "1k", "--limit", "2"]
    _, stderr, _ = run([*words, "--to", "6x100%"])
    expected = f"{WHOLE} → {HALF} in float32, {HALF} → {QUARTER} in bfloat16 (-50.0%)"
    assert f"state per sequence: {expected}" in stderr
    for way in (["--to", "0.5"], ["--to", "6x100%,6x4"]):
        _, _, plan = run([*words, *way])
        assert "no cut" in plan and "of vLLM's cache" in " ".join(plan.split())
