"""The commands as a user types them."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import statetrim as st
from helpers.forker import Forker
from statetrim.progress import Progress, counter, progress_reporter

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(warm_forker: Forker) -> Run:
    def run(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        words = [str(argument) for argument in arguments]
        result = warm_forker.run(words, folder=cwd)
        return subprocess.CompletedProcess(words, result["code"], result["out"], result["err"])

    return run


def test_select_and_prune_end_in_a_smaller_checkpoint(
    run: Run, checkpoint: Any, tmp_path: Path
) -> None:
    model = checkpoint("qwen3_5_text")
    seen = json.loads(run("inspect", model, "--to", "6x4", "--json").stdout)
    assert (seen["after"]["head_k_dim"], seen["after"]["head_v_dim"]) == (6, 4)
    weights_only = ["--method", "l1,readout_l1", "--option", "score=q"]
    selected = run("select", model, "--to", "6x4", *weights_only, "-o", "p.json", cwd=tmp_path)
    assert selected.returncode == 0, selected.stderr
    assert "6, by l1 (score=q)" in selected.stdout and "4, by readout_l1" in selected.stdout
    assert "12 x 8 -> 6 x 4" in selected.stdout
    plan = st.Plan.load(tmp_path / "p.json")
    assert plan.to == "6x4" and plan.counts("value") == dict.fromkeys(plan.layers, 4)
    assert (plan.axes["key"].options, plan.axes["value"].method) == ({"score": "q"}, "readout_l1")

    dry = run("prune", model, "p.json", "-o", "out", "--dry-run", "--json", cwd=tmp_path)
    assert json.loads(dry.stdout)["head_k_dim"] == [12, 6]
    assert [path.name for path in tmp_path.iterdir()] == ["p.json"]

    done = run("prune", model, "p.json", "-o", "out", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report, small = json.loads(done.stdout), st.open(tmp_path / "out")
    assert (report["head_k_dim"], report["head_v_dim"]) == ([12, 6], [8, 4])
    assert (small.geometry.head_k_dim, small.geometry.head_v_dim) == (6, 4)
    assert report["parameters"] == [st.open(model).parameters, small.parameters]
    assert seen["parameters_after"] == small.parameters
    assert report["weight_bytes"][1] == 4 * small.parameters

    again = run("prune", model, "p.json", "-o", "out", cwd=tmp_path)
    assert again.returncode == 0, "the same job is already done"
    assert not (tmp_path / "out.partial").exists()


def test_a_log_gets_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from statetrim.commands import progress as console

    with console.show_progress() as quick:
        quick(Progress(512, 1024, "tokens"))
    monkeypatch.setattr(console, "_LINE_SECONDS", 0.0)
    with console.show_progress() as shown, progress_reporter(shown, "pruning") as slow:
        written = counter(slow, 2048, "bytes")
        written(512)
        written(512)
    with console.show_progress("recovering") as training:
        training(Progress(2, 4, "steps", loss=float("nan")))
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "pruning: 512 of 2,048 bytes, 25%",
        "pruning: 1,024 of 2,048 bytes, 50%",
        "recovering: 2 of 4 steps, 50%, no finite loss",
    ]
