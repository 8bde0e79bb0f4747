"""`trim`: every family, bfloat16, what kills leave, refusals and warnings, and its estimate."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.modules.module import register_module_forward_pre_hook

import statetrim as st
from helpers import tiny
from helpers.cases import load_cases
from helpers.refusal import assert_refused, fingerprint, run
from helpers.reruns import quick_benchmark
from helpers.tiny import Load
from statetrim.evaluation.evaluate import evaluate
from statetrim.pipelines.job import Job
from statetrim.runtime.loading import load_live
from statetrim.runtime.logits import LogitReader
from statetrim.runtime.placement import Placement

OPTIONS: dict[str, Any] = {
    "tokens": 1024, "length": 64, "limit": 2, "batch_size": 2,
}  # fmt: skip
QUICK = OPTIONS | {"tasks": ("text",), "control": False}
FLAGS = ["--tokens", "1k", "--length", "64", "--limit", "2", "--batch-size", "2"]
pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns of its slow paths


@pytest.mark.usefixtures("own_tokenizer")
@tiny.every_type(*tiny.WHOLE_RUNS)
def test_every_family_ends_in_a_checkpoint_that_stock_code_loads(
    model_type: str, checkpoint: Load, text: Path, tmp_path: Path
) -> None:
    path = checkpoint(model_type)
    before = fingerprint(path)
    small = st.trim(path, to="50%x100%", text=text, out=tmp_path / "out", **QUICK)
    cls = tiny.stock_class(model_type)
    live, info = cls.from_pretrained(small.path, output_loading_info=True)
    assert not any(info.values()), info
    with torch.no_grad():
        assert live(torch.arange(8).unsqueeze(0)).logits.isfinite().all()
    assert small.geometry.head_k_dim == st.open(path).geometry.head_k_dim // 2
    file_names = {file.name for file in (small.path / "statetrim").iterdir()}
    assert {"plan.json", "prune.json", "trim.json", "scores.json"} <= file_names
    assert "## Measured" in (small.path / "README.md").read_text()
    assert fingerprint(path) == before and not (tmp_path / "out.partial").exists()


def test_heads_and_channels_are_cut_in_one_run(
    checkpoint: Load, text: Path, tmp_path: Path
) -> None:
    """A refit of such a cut needs sums of its own, and the report and the card say what is kept."""
    path = checkpoint("qwen3_5_text")
    small = st.trim(path, to="2heads:6x4", text=text, out=tmp_path / "out", **QUICK)
    geometry, artifacts = small.geometry, small.path / "statetrim"
    assert (geometry.num_v_heads, geometry.head_k_dim, geometry.head_v_dim) == (2, 6, 4)
    assert json.loads((artifacts / "trim.json").read_text())["to"] == "2heads:6x4"
    layers = json.loads((artifacts / "refit.json").read_text())["layers"]
    assert all(errors["after"] < errors["before"] for errors in layers.values())
    page = (artifacts / "report" / "report.md").read_text()
    assert "state 4 heads of 12 x 8 → 2 heads of 6 x 4" in page
    card = (small.path / "README.md").read_text()
    for words in ("2 of 4 value heads", "6 of 12 key/query channels", "4 of 8 value channels"):
        assert words in card
    for method in ("head_refit", "product", "readout_greedy"):
        assert f"chosen by `{method}`" in card


def test_what_is_measured_is_at_the_precision_of_the_state(
    checkpoint: Load, text: Path, tmp_path: Path
) -> None:
    path = checkpoint("qwen3_5_text")
    quick = OPTIONS | {"tasks": ("mqar",), "control": False, "text": text, "to": "50%x100%"}
    plain = st.trim(path, out=tmp_path / "plain", **quick)
    small = st.trim(path, out=tmp_path / "small", state_dtype="int8", **quick)
    scores = st.Scores.load(small.path / "statetrim" / "scores.json")
    again = st.evaluate([plain], baseline=path, tasks=("mqar",), limit=2, state_dtype="int8")
    cuts = [s.samples for s in again.scores if s.model in again.models[:2]]  # not random ones
    assert [s.samples for s in scores.scores] == cuts
    assert scores.lineage["state"]["dtype"] == "int8"
    page = (small.path / "statetrim" / "report" / "report.html").read_text()
    assert "states stored in int8" in page
    assert "states stored" not in (plain.path / "statetrim" / "report" / "report.html").read_text()
    with pytest.raises(st.StatetrimError, match="cannot be stored in 'int4'"):
        st.trim(path, out=tmp_path / "none", state_dtype="int4", **quick)


def test_both_axes_with_recovery_timing_and_an_engine_in_mind(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options that no other test sets; llama.cpp serves square states of 16, 32, 64 or 128."""
    quick_benchmark(monkeypatch)
    model, out = tmp_path / "model", tmp_path / "small"
    tiny.build("qwen3_5_text", model, linear_key_head_dim=32, linear_value_head_dim=32)
    command = ["trim", str(model), "-o", str(out), *FLAGS, "--text", str(text)]
    command += ["--benchmark", "--to", "20x100%", "--for", "llamacpp", "--recover", "1k", "--json"]
    command += ["--recall", "0.5"]
    code, err, printed = run(command)
    assert code is None, err
    small = st.open(out)
    assert (small.geometry.head_k_dim, small.geometry.head_v_dim) == (16, 16)
    file_names = {file.name for file in (out / "statetrim").iterdir()}
    assert {"refit.json", "recover.json", "timings.json", "report"} <= file_names
    printed_json = json.loads(printed)
    assert printed_json["scores"]["models"] == ["model", "recovered"]
    assert printed_json["checks"]["sliced_against_masked"] < 1e-4
    assert "timings" in (out / "statetrim" / "report" / "report.md").read_text().lower()
    plan, refit, trim = (
        json.loads((out / "statetrim" / f"{name}.json").read_text())
        for name in ("plan", "refit", "trim")
    )
    shares = plan["lineage"]["statistics"]["shares"]
    assert shares == refit["statistics"]["shares"], "selection and refit take the same mix"
    assert shares["recall"] == pytest.approx(0.5, abs=0.02)
    assert sum(shares.values()) == pytest.approx(1) and set(shares) == {"text", "recall"}
    assert trim["recall"] == 0.5


def test_a_dry_run_shows_the_steps_and_writes_nothing(
    checkpoint: Load, text: Path, tmp_path: Path
) -> None:
    command = ["trim", str(checkpoint("qwen3_next")), "-o", str(tmp_path / "out"), *FLAGS]
    command += ["--text", str(text), "--dry-run", "--json"]
    code, err, out = run([*command, "--to", "6x100%"])
    assert code is None and not err
    printed_json = json.loads(out)
    assert [step["name"] for step in printed_json["steps"]][:3] == ["calibrate", "select", "prune"]
    assert printed_json["state_bytes"][1] * 2 == printed_json["state_bytes"][0]
    kinds = {"name", "does", "tokens", "memory", "disk"}
    assert all({*step} == kinds for step in printed_json["steps"]), "no seconds"
    code, err, out = run([*command, "--to", "6x100%,4x4"])
    assert code is None and not err
    printed_json = json.loads(out)
    does = {step["name"]: step["does"] for step in printed_json["steps"]}
    assert [*does] == ["calibrate", "select", "compare", "check", "evaluate", "report"]
    assert does["compare"].startswith("2 shapes") and "4x4" in printed_json["candidates"]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("flags", "message"), load_cases("trim"))
def test_mistakes_are_one_sentence(
    flags: list[str], message: str, checkpoint: Load, text: Path, tmp_path: Path
) -> None:
    command = ["trim", str(checkpoint("qwen3_next")), "-o", str(tmp_path / "out"), "--json"]
    assert_refused([*command, "--text", str(text), *flags], message, tmp_path)


def test_a_model_that_was_cut_before_is_cut_again_and_reported(
    checkpoint: Load, text: Path, tmp_path: Path
) -> None:
    original = checkpoint("qwen3_5_text")
    first = st.trim(original, to="8x100%", text=text, out=tmp_path / "first", **QUICK)
    second = st.trim(first.path, to="4x100%", text=text, out=tmp_path / "second", **QUICK)
    page = (second.path / "statetrim" / "report" / "report.md").read_text()
    assert "state 8 x 8 → 4 x 8" in page


def test_a_kill_while_tidying_up_is_mended(checkpoint: Load, text: Path, tmp_path: Path) -> None:
    quick = QUICK | {"text": text, "to": "6x100%"}
    out, partial = tmp_path / "out", tmp_path / "out.partial"
    st.trim(checkpoint("qwen3_5_text"), out=out, **quick)
    record = json.loads((out / "statetrim" / "trim.json").read_text())
    (partial / "statetrim").mkdir(parents=True)
    job = {name: value for name, value in record.items() if name not in ("checks", "warnings")}
    (partial / "statetrim" / "trim.json").write_text(json.dumps(job))
    (partial / "pruned").mkdir()
    (partial / "pruned" / "left").write_text("over")
    report = out / "statetrim" / "report"
    shutil.rmtree(report)
    st.trim(checkpoint("qwen3_5_text"), out=out, **quick)
    assert not partial.exists() and (report / "report.html").exists()
    left = report.with_name("report.partial")
    (left / "statetrim").mkdir(parents=True)
    st.trim(checkpoint("qwen3_5_text"), out=out, **quick)
    assert not left.exists()


def test_whether_weights_are_streamed_is_decided_once(
    checkpoint: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job.from_options(st.open(checkpoint("qwen3_5_text")), st.TrimOptions(to="6x100%"))
    monkeypatch.setattr(Placement, "free_memory", 0)
    assert job.with_fixed_layerwise(tmp_path).options.layerwise is True
    monkeypatch.setattr(Placement, "free_memory", 2**50)
    assert job.with_fixed_layerwise(tmp_path).options.layerwise is True
    assert job.record["layerwise"] is None


@pytest.mark.parametrize("model_type", ["qwen3_5_text", "mamba2"])
def test_the_whole_chain_runs_in_bfloat16(
    model_type: str, checkpoint: Load, text: Path, tmp_path: Path
) -> None:
    model = tiny.to_bfloat16(checkpoint(model_type), tmp_path / "model")
    repaired: dict[str, Any] = {"refit": True, "recover": 1024, "control": False}
    small = st.trim(model, to="50%x100%", text=text, out=tmp_path / "out", **OPTIONS, **repaired)
    assert {tensor.dtype for _, tensor in small.tensors.values()} == {"BF16"}


@pytest.mark.parametrize("model_type", ["qwen3_next", "mamba2", "granitemoehybrid", "falcon_h1"])
def test_logits_at_chosen_places_are_the_models_own(
    model_type: str, checkpoint: Load, tmp_path: Path
) -> None:
    live = load_live(tiny.to_bfloat16(checkpoint(model_type), tmp_path / "model"))
    ids, positions = torch.arange(24).unsqueeze(0), torch.tensor([3, 11, 23])
    with torch.inference_mode():
        all_logits = live.logits(ids)[:, positions].float()
        chosen_logits = LogitReader(live).forward(ids)(positions)
    # Tolerance: one bfloat16 step of the largest logit, as other shapes sum in another order.
    torch.testing.assert_close(
        chosen_logits, all_logits, rtol=0, atol=2**-7 * float(all_logits.abs().max())
    )


def test_evaluation_is_estimated_for_the_tokens_that_models_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Original, cut, refitted cut and random cut, on text and all settings of recall."""
    model = st.open(tiny.build("qwen3_5_text", tmp_path / "model", vocab_size=1024))
    text = tiny.write_text(tmp_path / "text.jsonl", 8000)
    options: Any = {"text": text, "to": "6x4", "tokens": 512, "length": 64, "limit": 2}
    steps = st.estimate(model, **options)
    (step,) = (step for step in steps if step.name == "evaluate")
    tokens, run = 0, evaluate.run

    def count(module: torch.nn.Module, args: Any) -> None:
        nonlocal tokens
        if type(module).__name__.endswith("RMSNormGated"):  # of every linear layer
            tokens += args[0].numel() // args[0].shape[-1]  # and value head

    def counted(*args: Any) -> Any:
        with register_module_forward_pre_hook(count):
            return run(*args)

    monkeypatch.setattr(evaluate, "run", counted)
    st.trim(model, **options, out=tmp_path / "out")
    tokens //= len(model.geometry.layers) * model.geometry.num_v_heads
    assert step.tokens >= 0.9 * tokens, "for the most samples that may be taken"
