"""studies/gpu: its steps, resuming, failures, the budget, and what its results file says."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers import tiny

STUDY = Path(__file__).parents[2] / "studies/gpu"
sys.path.insert(0, str(STUDY))
sys.path.insert(0, str(STUDY.parent))
import plan as kit_plan  # noqa: E402
import results  # noqa: E402
import run as kit_run  # noqa: E402


def _write(kit: kit_plan.Kit, name: str, code: str = "") -> kit_plan.Step:
    """A step that writes its file and appends its name to `order.txt`."""
    ends = code or f"open('{name}', 'w')"
    source = f"open('order.txt', 'a').write('{name} '); {ends}"
    command = [sys.executable, "-c", f"import os, sys; os.chdir({str(kit.work)!r}); {source}"]
    return kit_plan.Step(name, name, lambda kit, left: command, passes=float(name == "long") * 1e9)


@pytest.fixture
def kit(tmp_path: Path, checkpoint: Callable[[str], Path]) -> kit_plan.Kit:
    work = tmp_path / "secret-folder"
    work.mkdir()
    return kit_plan.Kit(str(checkpoint("qwen3_next")), work, "text.jsonl", device="cpu")


def test_a_step_that_fails_does_not_stop_the_rest_and_is_tried_again(
    kit: kit_plan.Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [_write(kit, "one"), _write(kit, "two", "sys.exit('of /home/me')"), _write(kit, "long")]
    steps.append(_write(kit, "three"))
    monkeypatch.setattr(kit_run, "steps", lambda *_, **__: steps)
    for _ in range(2):
        kit_run.run(kit, budget=1e6)
    assert kit.path("order.txt").read_text().split() == ["one", "two", "three", "two"]
    content = kit.path("results.json").read_text()
    ended = {step["name"]: step["ended"] for step in json.loads(content)["steps"]}
    expected = {"one": "done", "two": "failed", "long": "no time left", "three": "done"}
    assert ended == expected
    assert "/home/me" not in content and "secret-folder" not in content


def test_a_line_that_was_not_written_whole_is_left_out(kit: kit_plan.Kit) -> None:
    line = {"name": "one", "seconds": 1.0, "ended": "done"}
    kit.path("steps.jsonl").write_text(json.dumps(line) + '\n{"name": "tw')
    assert kit_run.finished_steps(kit) == {"one": line}


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("30m", 1800), ("1.5h", 5400)])
def test_a_budget_is_a_time(text: str, seconds: float) -> None:
    assert kit_run.parse_budget(text) == seconds


def test_steps_take_shapes_that_engines_like(kit: kit_plan.Kit) -> None:
    steps = {step.name: step for step in kit_plan.steps(kit, (128, 128), vllm=False)}
    shapes = [steps[f"select uniform {share}"].command(kit, 0.0) for share in ("75%", "25%")]
    assert [command[command.index("--to") + 1] for command in shapes] == ["96x96", "32x32"]
    assert "serve in vLLM" not in steps


def test_the_page_has_a_row_for_every_score(tmp_path: Path) -> None:
    rows = [{"model": "original", "task": "mqar", "metric": "accuracy", "value": 0.5}]
    rows.append(rows[0] | {"model": "uniform-50", "difference": [-0.1, -0.2, 0.0]})
    records = {
        "model": "owner/name", "environment": {"gpus": [{"name": "H100"}]}, "scores": rows,
        "lm_eval": [], "steps": [{"name": "verify", "ended": "failed"}],
    }  # fmt: skip
    file = tmp_path / "results.json"
    file.write_text(json.dumps(records))
    page = results.page([file])
    assert "## owner/name (H100)" in page and "verify (failed)" in page
    assert "| mqar accuracy | uniform-50 | 0.5000 | -0.1000 (-0.2000 to +0.0000) |" in page


@pytest.mark.slow
def test_a_whole_run_on_a_tiny_model(tmp_path: Path, checkpoint: Callable[[str], Path]) -> None:
    """Every step but those that need a hub; the second run has nothing left to do."""
    text = tiny.write_text(tmp_path / "text.jsonl", 2**14)
    heldout = tiny.write_text(tmp_path / "heldout.jsonl", 2**13)
    arguments = [
        "--model", str(checkpoint("qwen3_next")), "--work", str(tmp_path / "work"), "--budget",
        "2h", "--text", str(text), "--heldout", str(heldout), "--device", "cpu", "--tokens", "512",
        "--length", "64", "--limit", "2", "--batch-size", "4",
    ]  # fmt: skip
    for option in ("--tokens=512", "--length=64", "--batch-size=4"):
        arguments.append(f"--recover-option={option}")
    for _ in range(2):
        subprocess.run([sys.executable, str(STUDY / "run.py"), *arguments], check=True)
    steps = json.loads((tmp_path / "work/results.json").read_text())["steps"]
    failed = {step["name"] for step in steps if step["ended"] != "done"}
    needs_hub = {step["name"] for step in steps if " of " in step["name"]}
    needs_hub |= {"evaluate hellaswag", "evaluate squad", "evaluate fda", "evaluate swde"}
    assert failed <= needs_hub
