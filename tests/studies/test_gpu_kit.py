"""studies/gpu: its steps, resuming, failures, the budget, and what its results file says."""

import json
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import statetrim as st
from helpers import tiny
from helpers.loopback_hub import serving, use_hub
from helpers.pretended_cuda import pretended_cuda
from statetrim.commands.app import app

STUDY = Path(__file__).parents[2] / "studies/gpu"
DATA = Path(__file__).parents[3] / "shared/data"
sys.path.insert(0, str(STUDY))
sys.path.insert(0, str(STUDY.parent))
import estimate  # noqa: E402
import plan as kit_plan  # noqa: E402
import results  # noqa: E402
import run as kit_run  # noqa: E402
import ssm_checkpoint  # noqa: E402


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


def test_after_a_line_that_was_not_written_whole(
    kit: kit_plan.Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = {"name": "one", "seconds": 1.0, "ended": "done"}
    kit.path("steps.jsonl").write_text(json.dumps(line) + '\n{"name": "tw')
    assert kit_plan.finished_steps(kit) == {"one": line}
    for name in ("one", "three"):  # of the third the line was lost
        kit.path(name).touch()
    steps = [_write(kit, name) for name in ("one", "two", "three")]
    monkeypatch.setattr(kit_run, "steps", lambda *_, **__: steps)
    for _ in range(2):
        kit_run.run(kit, budget=1e6)
    assert kit.path("order.txt").read_text().split() == ["two"]
    ended = [row["ended"] for row in kit_plan.finished_steps(kit).values()]
    assert ended == ["done", "done", "done"]


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("30m", 1800), ("1.5h", 5400)])
def test_a_budget_is_a_time(text: str, seconds: float) -> None:
    assert kit_run.parse_budget(text) == seconds


def test_steps_take_shapes_that_engines_like(kit: kit_plan.Kit) -> None:
    steps = {step.name: step for step in kit_plan.steps(kit, (128, 128), vllm=False)}
    shapes = [steps[f"select uniform {share}"].command(kit, 0.0) for share in ("75%", "25%")]
    assert [command[command.index("--to") + 1] for command in shapes] == ["96x96", "32x32"]
    assert "serve in vLLM" not in steps


def test_an_estimate_downloads_only_the_config(
    tmp_path: Path, checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    model = st.load(checkpoint("qwen3_next"), device="cpu")
    total = sum(parameter.numel() for parameter in model.parameters())
    shutil.copytree(checkpoint("qwen3_next"), tmp_path / "hub/owner/name/main")
    with serving(tmp_path / "hub") as hub:
        use_hub(monkeypatch, hub.url, tmp_path / "cache")
        kit = kit_plan.Kit("owner/name", tmp_path, "text.jsonl")
        estimate.print_estimate(kit, budget=60.0)
        costs = estimate.Costs.estimate(st.open("owner/name", weights=False), kit)
        assert hub.downloaded_files() == {"config.json"}
    printed = capsys.readouterr().out
    assert "memory of the GPU: 1 GiB\ndisk: 1 GiB" in printed and "(beyond the budget)" in printed
    assert costs.parameters == total


def test_a_model_of_mamba_ssm_is_converted(
    tmp_path: Path, checkpoint: Callable[[str], Path]
) -> None:
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


def test_scores_of_lm_eval_have_intervals(kit: kit_plan.Kit) -> None:
    for name, right in (("original", [1.0, 1.0, 0.0]), ("uniform-50", [1.0, 0.0, 0.0])):
        content = {"task": "gsm8k", "samples": {"exact_match": right}}
        kit.path(f"lm-eval-gsm8k-{name}.json").write_text(json.dumps(content))
    results.collect(kit, [], {})
    original, cut = json.loads(kit.path("results.json").read_text())["scores"]
    assert original["value"] == pytest.approx(2 / 3) and "difference" not in original
    estimated, low, high = cut["difference"]
    assert estimated == pytest.approx(-1 / 3) and low < estimated < high


def test_the_page_has_a_row_for_every_score(tmp_path: Path) -> None:
    rows = [{"model": "original", "task": "mqar", "metric": "accuracy", "value": 0.5}]
    rows.append(rows[0] | {"model": "uniform-50", "difference": [-0.1, -0.2, 0.0]})
    records = {
        "model": "owner/name", "environment": {"gpus": [{"name": "H100"}]}, "scores": rows,
        "steps": [{"name": "verify", "ended": "failed"}],
    }  # fmt: skip
    file = tmp_path / "results.json"
    file.write_text(json.dumps(records))
    page = results.page([file])
    assert "## owner/name (H100)" in page and "verify (failed)" in page
    assert "| mqar accuracy | uniform-50 | 0.5000 | -0.1000 (-0.2000 to +0.0000) |" in page


def _arguments(model: Path, tmp_path: Path) -> list[str]:
    """The options of a small run."""
    text = tiny.write_text(tmp_path / "text.jsonl", 2**14)
    heldout = tiny.write_text(tmp_path / "heldout.jsonl", 2**13)
    return [
        "--model", str(model), "--work", str(tmp_path / "work"), "--budget", "2h", "--text",
        str(text), "--heldout", str(heldout), "--tokens", "512", "--length", "64", "--limit", "2",
        "--batch-size", "4", "--recover-option=--tokens=512",
        *(["--data", str(DATA)] if DATA.exists() else []),
    ]  # fmt: skip


def _not_done(tmp_path: Path) -> set[str]:
    """Steps that did not end, except those that read the hub."""
    steps = json.loads((tmp_path / "work/results.json").read_text())["steps"]
    names = {
        step["name"] for step in steps if step["ended"] != "done" and " of " not in step["name"]
    }
    read = {"evaluate fda", "evaluate swde"}
    return names - read - (set() if DATA.exists() else {"evaluate hellaswag", "evaluate squad"})


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_whole_run_on_a_tiny_model(tmp_path: Path, checkpoint: Callable[[str], Path]) -> None:
    """The second run tries only the steps that failed."""
    arguments = [*_arguments(checkpoint("qwen3_next"), tmp_path), "--device", "cpu"]
    for _ in range(2):
        subprocess.run([sys.executable, str(STUDY / "run.py"), *arguments], check=True)
    assert not _not_done(tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_whole_run_on_pretended_gpus(
    tmp_path: Path, checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All steps in this process, where a tensor on the wrong device is an error. Pretended GPUs
    have no gradient, so the cut is not recovered."""

    def run_here(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        at = 2 if command[1].endswith(".py") else 3
        monkeypatch.setattr(sys, "argv", command[at - 1 :])
        if at == 2:
            runpy.run_path(command[1], run_name="__main__")
        else:
            app(command[at:], standalone_mode=False)
        return subprocess.CompletedProcess(command, 0)

    def attempt(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        if "recover" in command:
            shutil.copytree(tmp_path / "work/fitted-uniform-50", tmp_path / "work/recovered")
            return subprocess.CompletedProcess(command, 0)
        try:
            return run_here(command)
        except (Exception, SystemExit) as error:
            errors.append(f"{command[-1]}: {error!r}")
            return subprocess.CompletedProcess(command, 1)

    errors = list[str]()
    monkeypatch.setattr(kit_run.subprocess, "run", attempt)
    monkeypatch.setattr(sys, "argv", ["run.py", *_arguments(checkpoint("qwen3_next"), tmp_path)])
    with torch.no_grad(), pretended_cuda(1) as cards:
        kit_run.main()
    assert not _not_done(tmp_path), errors
    assert cards.used == {"cuda:0"}
