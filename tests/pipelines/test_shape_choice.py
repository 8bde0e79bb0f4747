"""`trim --state` compares shapes, prunes to the best one and writes down why."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import statetrim as st
from helpers import tiny
from helpers.refusal import check_refusal, run
from statetrim.artifacts.origin import read_seen_texts
from statetrim.pipelines.job import Job
from statetrim.pipelines.observer import Observer
from statetrim.pipelines.options import TrimOptions
from statetrim.serving.target import target_from_options

Load = Callable[[str], Path]
OPTIONS: dict[str, Any] = {
    "tokens": 1024, "limit": 2, "batch_size": 2, "benchmark": False, "control": False,
}  # fmt: skip
pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns of its slow paths


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_text(tmp_path_factory.mktemp("text") / "text.jsonl", 2**14)


class RecordingObserver(Observer):
    def __init__(self) -> None:
        self.started: list[str] = []
        self.cached: list[str] = []
        self.messages: list[str] = []

    def on_message(self, sentence: str) -> None:
        self.messages.append(sentence)

    def on_start(self, stage: str) -> None:
        self.started.append(stage)

    def on_cached(self, stage: str) -> None:
        self.cached.append(stage)


def test_half_of_the_bytes_by_the_best_of_three(
    checkpoint: Load, text: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, out = st.open(checkpoint("qwen3_5_text")), tmp_path / "small"
    watch = RecordingObserver()
    small = st.trim(model, state=0.5, text=text, out=out, watch=watch, **OPTIONS)
    assert len(watch.started) == len({*watch.started}), "no stage has the name of another"
    decision = json.loads((out / "statetrim" / "decision.json").read_text())
    chosen = f"{small.geometry.head_k_dim}x{small.geometry.head_v_dim}"
    assert decision["chosen"] == chosen
    assert watch.messages == [f"shape {decision['sentence']}"]
    for stage in ("prune", "calibrate for the refit", "refit"):
        started = [name for name in watch.started if name.split(" (")[0] == stage]
        assert len(started) == 3, f"{stage}: the cut to the chosen shape is made once"
    assert {"prune (pruned)", "refit"} <= {*watch.cached}
    assert small.geometry.state_numel <= model.geometry.state_numel / 2
    candidates = {
        str(item.shape) for item in Job.from_options(model, TrimOptions(state=0.5)).candidates
    }
    assert set(decision["predicted"]) == candidates == set(decision["refused"])
    costs = list(decision["predicted"].values())
    assert costs == sorted(costs)
    measured = [item["name"] for item in decision["measured"]]
    assert measured == list(decision["predicted"])[:3] and chosen in measured
    assert (out / "statetrim" / "refit.json").exists(), "every shape is refitted"
    ends = {item.end for item in read_seen_texts(small)}
    assert ends == {1024 + 2 * 512}, "calibration, and the text that decided"
    assert not [message for message in caplog.messages if "--skip" in message]
    page = (out / "statetrim" / "report" / "report.md").read_text()
    assert "Why this shape" in page and f"{chosen} (chosen)" in page
    watch = RecordingObserver()
    st.trim(model, state=0.5, text=text, out=out, watch=watch, **OPTIONS)
    assert not watch.started, "a finished job has nothing left to do"


def test_an_interrupted_comparison_resumes(
    checkpoint: Load, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, out = checkpoint("delta_net"), tmp_path / "small"
    from statetrim.pipelines import shape_choice

    def interrupt(*args: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shape_choice, "decide", interrupt)
        st.trim(model, state=0.25, text=text, out=out, **OPTIONS)
    watch = RecordingObserver()
    resumed = st.trim(model, state=0.25, text=text, out=out, watch=watch, **OPTIONS)
    assert {"calibrate", "predict"} <= set(watch.cached)
    uninterrupted = st.trim(model, state=0.25, text=text, out=tmp_path / "whole", **OPTIONS)
    assert resumed.geometry == uninterrupted.geometry and resumed.digest == uninterrupted.digest


def test_the_plan_says_who_refuses_which_shape(
    checkpoint: Load, text: Path, tmp_path: Path
) -> None:
    command = ["trim", str(checkpoint("qwen3_next")), "--text", str(text), "--dry-run"]
    command += ["-o", str(tmp_path / "out")]
    code, _, plan = run([*command, "--state", "0.5"])
    assert not code and "refused by" in plan and "Shapes to compare" in plan
    code, err, _ = run([*command, "--state", "0.5", "--for", "vllm"])
    assert not code and "--for vllm-cpu" in err
    code, err, _ = run([*command, "--state", "0.5", "--for", "sglang"])
    assert not code and "--for vllm-cpu" not in err
    code, err, _ = run([*command, "--keep", "4"])
    assert not code and "is refused by" in err and "vLLM" in err


def test_for_alone_means_half_of_the_bytes(checkpoint: Load) -> None:
    job = Job.from_options(st.open(checkpoint("qwen3_next")), TrimOptions(for_="sglang"))
    assert job.candidates
    assert all("SGLang" not in candidate.refused for candidate in job.candidates)


@pytest.mark.parametrize(
    ("model_type", "flags", "sentence"),
    [
        ("delta_net", ["--state", "0.5", "--for", "vllm"], "vLLM is not known to serve delta_net"),
        ("delta_net", ["--keep", "4", "--for", "vllm"], "vLLM is not known to serve delta_net"),
        ("qwen3_next", ["--state", "1.5"], "between 0 and 1"),
        ("qwen3_next", ["--state", "0.5", "--keep", "4"], "leave out the other ways"),
    ],
)
def test_refusals(
    model_type: str, flags: list[str], sentence: str, checkpoint: Load, tmp_path: Path
) -> None:
    text = tiny.write_text(tmp_path / "text.jsonl", 100)
    command = ["trim", str(checkpoint(model_type)), "--text", str(text)]
    code, err, out = run([*command, *flags, "-o", str(tmp_path / "out")])
    check_refusal(code, err, out, sentence)


def test_a_shape_that_the_engine_refuses_is_an_error_where_both_axes_were_given(
    tmp_path: Path,
) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"model_type": "qwen3_next", "num_hidden_layers": 4}')  # 128 x 128
    model = st.open(config)
    with pytest.raises(st.StatetrimError, match="SGLang does not serve a state of 96x96"):
        target_from_options(model, square=96, for_="sglang")
    assert target_from_options(model, square=64, for_="sglang").after.head_k_dim == 64
    nearest = target_from_options(
        model, keep=64, for_="vllm"
    ).after  # keys alone: the nearest is taken
    assert (nearest.head_k_dim, nearest.head_v_dim) == (80, 96)


def test_a_size_that_the_engine_cannot_serve_is_said_before_the_work(
    text: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wide = {"linear_key_head_dim": 128, "linear_value_head_dim": 128, "num_hidden_layers": 4}
    model = tiny.build("qwen3_5_text", tmp_path / "model", "100MB", **wide)
    warning = (
        "50% of the state was asked for, but the largest shape within it that vllm-cpu serves is "
        "64 x 64 (keys x values), which keeps 25%"
    )
    command = ["trim", str(model), "--text", str(text), "--dry-run", "--json"]
    command += ["-o", str(tmp_path / "out")]
    for size_flags in (["--state", "0.5"], ["--keep", "64"], []):
        caplog.clear()
        code, _, out = run([*command, *size_flags, "--for", "vllm-cpu"])
        assert not code and caplog.messages == [f"warning: {warning}"]
        assert json.loads(out)["state_share"] == {"asked": 0.5, "kept": 0.25, "why": warning}
    caplog.clear()
    code, _, out = run([*command, "--state", "0.5", "--for", "transformers"])
    assert not code and not caplog.messages
    assert json.loads(out)["state_share"] == {"asked": 0.5, "kept": 0.5, "why": None}
