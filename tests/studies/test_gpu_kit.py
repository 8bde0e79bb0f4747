"""studies/gpu: its steps, resuming, failures, the budget, and what its results file says."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import statetrim as st
from helpers import tiny
from helpers.loopback_hub import serving, use_hub
from helpers.pretended_cuda import pretended_cuda
from helpers.tiny import Load
from statetrim.commands.app import app

STUDY = Path(__file__).parents[2] / "studies/gpu"
sys.path.insert(0, str(STUDY))
sys.path.insert(0, str(STUDY.parent))
import plan as kit_plan  # noqa: E402
import results  # noqa: E402
import run as kit_run  # noqa: E402
import ssm_checkpoint  # noqa: E402


def _write(kit: kit_plan.Kit, name: str, code: str = "") -> kit_plan.Step:
    """A step that writes its file and appends its name to `order.txt`."""
    ends = code or f"open('{name}', 'w')"
    source = f"open('order.txt', 'a').write('{name} '); {ends}"
    command = [sys.executable, "-c", f"import os, sys; os.chdir({str(kit.work)!r}); {source}"]
    return kit_plan.Step(name, name, lambda kit, left: command)


@pytest.fixture
def run(kit: kit_plan.Kit, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the kit with these steps; returns how each of them ended."""

    def run(steps: list[kit_plan.Step], budget: float = 1e6) -> dict[str, str]:
        monkeypatch.setattr(kit_run, "steps", lambda *_, **__: steps)
        kit_run.run(kit, budget=budget)
        return {name: str(row["ended"]) for name, row in kit_plan.finished_steps(kit).items()}

    return run


@pytest.fixture
def kit(tmp_path: Path, checkpoint: Load) -> kit_plan.Kit:
    work = tmp_path / "secret-folder"
    work.mkdir()
    return kit_plan.Kit(str(checkpoint("qwen3_next")), work, "text.jsonl", device="cpu")


def test_a_step_that_fails_does_not_stop_the_rest_and_is_tried_again(
    kit: kit_plan.Kit, run: Any
) -> None:
    steps = [_write(kit, "one"), _write(kit, "two", "sys.exit('of /home/me')")]
    steps.append(_write(kit, "three"))
    assert run(steps) == run(steps) == {"one": "done", "two": "failed", "three": "done"}
    assert kit.path("order.txt").read_text().split() == ["one", "two", "three", "two"]
    content = kit.path("results.json").read_text()
    assert "/home/me" not in content and "secret-folder" not in content


def test_after_a_line_that_was_not_written_whole(kit: kit_plan.Kit, run: Any) -> None:
    line = {"name": "one", "seconds": 1.0, "ended": "done"}
    kit.path("steps.jsonl").write_text(json.dumps(line) + '\n{"name": "tw')
    assert kit_plan.finished_steps(kit) == {"one": line}
    steps = [_write(kit, name) for name in ("one", "two", "three")]
    for step in (steps[0], steps[2]):  # of the third the line was lost
        kit_run.stage_of(step, kit, st.open(kit.model), []).start()
        kit.path(step.makes).touch()
    assert run(steps) == run(steps) == dict.fromkeys(("one", "two", "three"), "done")
    assert kit.path("order.txt").read_text().split() == ["two"]


def test_what_other_options_change_is_made_again(kit: kit_plan.Kit, run: Any) -> None:
    def copy(kit: kit_plan.Kit, source: str, target: str) -> kit_plan.Step:
        code = f"import shutil; shutil.copy({source!r}, {target!r})"
        step = _write(kit, target, code)
        command = [*step.command(kit, 0.0), str(kit.path(source))]
        return replace(step, command=lambda kit, left: command)

    for number in (1, 1, 2):
        first = _write(kit, "one", f"open('one', 'w').write('{number}')")
        run([first, copy(kit, "one", "two"), _write(kit, "three")])
    assert kit.path("order.txt").read_text().split() == ["one", "two", "three", "one", "two"]
    assert kit.path("two").read_text() == "2"


def test_a_step_ends_with_the_time(kit: kit_plan.Kit, run: Any) -> None:
    steps = [_write(kit, "long", "import time; time.sleep(60)"), _write(kit, "next")]
    assert run(steps, budget=1.0) == {"long": "no time left", "next": "no time left"}


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("30m", 1800), ("1.5h", 5400)])
def test_a_budget_is_a_time(text: str, seconds: float) -> None:
    assert kit_run.parse_budget(text) == seconds


def test_steps_take_shapes_that_engines_like(kit: kit_plan.Kit) -> None:
    plan = kit_plan.steps(kit, (128, 128), gpus=0, vllm=False)
    steps = {step.name: step for step in plan}
    shapes = [steps[f"select uniform-{share}"].command(kit, 0.0) for share in (75, 25)]
    assert [command[command.index("--to") + 1] for command in shapes] == ["96x96", "32x32"]
    assert not {"serve in vLLM", "calibrate spread"} & steps.keys()


def test_a_dry_run_downloads_only_the_config(
    tmp_path: Path, checkpoint: Load, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    shutil.copytree(checkpoint("qwen3_next"), tmp_path / "hub/owner/name/main")
    with serving(tmp_path / "hub") as hub:
        use_hub(monkeypatch, hub.url, tmp_path / "cache")
        kit_run.print_plan(kit_plan.Kit("owner/name", tmp_path, "text.jsonl"))
        assert hub.downloaded_files() == {"config.json"}
    assert "disk: 10 times the size of the weights" in capsys.readouterr().out


def test_a_model_of_mamba_ssm_is_converted(tmp_path: Path, checkpoint: Load) -> None:
    from transformers import Mamba2Config, Mamba2ForCausalLM

    config = Mamba2Config(
        hidden_size=32, num_hidden_layers=2, num_heads=4, head_dim=16, state_size=8, n_groups=1,
        vocab_size=64, tie_word_embeddings=True,
    )  # fmt: skip
    model, source = Mamba2ForCausalLM(config).eval(), tmp_path / "published"
    original = {
        "d_model": 32, "n_layer": 2, "vocab_size": 61, "pad_vocab_size_multiple": 4,
        "ssm_cfg": {"layer": "Mamba2", "d_state": 8, "headdim": 16}, "attn_layer_idx": [],
        "tie_embeddings": True, "residual_in_fp32": True,
    }  # fmt: skip
    source.mkdir()
    (source / "config.json").write_text(json.dumps(original))
    for name in ssm_checkpoint.TOKENIZER_FILES:
        (source / name).write_text("{}")
    names = {name: name.replace("embeddings.", "embedding.") for name in model.state_dict()}
    tensors = {names[name]: tensor for name, tensor in model.state_dict().items()}
    torch.save(tensors, source / "pytorch_model.bin")
    out = tmp_path / "model"
    assert ssm_checkpoint.stock_model(str(source), out, weights=False) == str(out / "config.json")
    assert ssm_checkpoint.stock_model(str(source), out, weights=True) == str(out)
    ids, converted = torch.arange(12).unsqueeze(0), st.load(out, device="cpu")
    torch.testing.assert_close(converted(ids).logits, model(ids).logits)
    other = str(checkpoint("qwen3_next"))
    assert ssm_checkpoint.stock_model(other, out, weights=True) == other


def test_the_page_has_a_row_for_every_score(tmp_path: Path) -> None:
    rows = [{"model": "original", "task": "mqar", "metric": "accuracy", "value": 0.5}]
    rows.append(rows[0] | {"model": "uniform-50", "difference": [-0.1, -0.2, 0.0]})
    records = {
        "model": "owner/name", "environment": {"gpus": ["H100"]}, "scores": rows,
        "steps": [{"name": "verify", "ended": "failed"}],
        "stored_states": [{"code": "int8", "share": 0.25, "loss": [0.01, 0.0, 0.02]}],
    }  # fmt: skip
    file = tmp_path / "results.json"
    file.write_text(json.dumps(records))
    page = results.page([file])
    assert "## owner/name (H100)" in page and "verify (failed)" in page
    assert "| int8 | 25.0 % | +0.0100 (+0.0000 to +0.0200) |" in page
    assert "| mqar accuracy | uniform-50 | 0.5000 | -0.1000 (-0.2000 to +0.0000) |" in page


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("quick_sensitivity")
def test_a_whole_run_on_pretended_gpus(
    tmp_path: Path, checkpoint: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process, where a tensor on the wrong device is an error. Pretended GPUs have no
    gradient: the cut is not recovered, and some steps are left out."""

    def attempt(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        if "grad" in command or "recover" in command:
            return subprocess.CompletedProcess(command, 1)
        try:
            app(command[3:], standalone_mode=False)  # of statetrim
        except (Exception, SystemExit) as error:
            print(f"{command[-1]}: {error!r}")
            return subprocess.CompletedProcess(command, 1)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.chdir(tmp_path)
    replaced = SimpleNamespace(run=attempt, STDOUT=-2, TimeoutExpired=TimeoutError)
    monkeypatch.setattr(kit_run, "subprocess", replaced)
    tiny.write_text(tmp_path / "text.jsonl", 2**14)
    tiny.write_text(tmp_path / "heldout.jsonl", 2**13)
    words = f"run.py --model {checkpoint('qwen3_next')} --work {tmp_path / 'work'} --budget 2h"
    words += " --text text.jsonl --heldout heldout.jsonl --tokens 512 --length 64 --limit 2"
    words += " --batch-size 4 --recover-option=--tokens=512"
    monkeypatch.setattr(sys, "argv", words.split())
    with torch.no_grad(), pretended_cuda(1) as cards:
        kit_run.main()
    results = json.loads((tmp_path / "work" / "results.json").read_text())
    missing = {step["name"] for step in results["steps"] if step["ended"] != "done"}
    on_the_hub = {f"evaluate {task}" for task in kit_plan.TASKS if task not in ("text", "mqar")}
    assert missing - on_the_hub <= {"gradients", "recover", "recover layerwise"}
    assert results["environment"]["gpus"] == ["pretended"]
    assert cards.used - {"meta"} == {"cuda:0"}  # models are built on meta
