"""`trim` compares shapes, prunes to the best one and writes down why."""

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import statetrim as st
from helpers import tiny
from helpers.refusal import run
from helpers.tiny import Load
from statetrim.artifacts.decision import NoCutNeeded
from statetrim.artifacts.steps import read_seen_texts
from statetrim.commands.trimming.result import _load_line
from statetrim.cut.geometry import Target
from statetrim.evaluation.evaluate import evaluate
from statetrim.evaluation.options import EvaluateOptions
from statetrim.maths.formatting import fit_text
from statetrim.pipelines import stages
from statetrim.pipelines.job import Job
from statetrim.pipelines.options import TrimOptions
from statetrim.pipelines.shape_choice import _point, prediction_sources, shortlist
from statetrim.pipelines.stage import Observer
from statetrim.serving import matrix
from statetrim.serving.matrix import NEEDS_PLUGIN, ServedBy, Shape, compatibility_of_shape

OPTIONS: dict[str, Any] = {
    "tokens": 1024, "length": 64, "limit": 2, "batch_size": 2,
    "control": False,
}  # fmt: skip
pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns of its slow paths


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
    small = st.trim(model, to=0.5, text=text, out=out, watch=watch, **OPTIONS)
    assert len(watch.started) == len({*watch.started}), "no stage has the name of another"
    decision = json.loads((out / "statetrim" / "decision.json").read_text())
    chosen = decision["chosen"]
    assert chosen == str(Target(model.geometry, small.geometry))
    assert watch.messages == [f"chosen: {decision['sentence']}"]
    measured = list(decision["files"])
    of_channels = [name for name in measured if name != "2heads"]  # whose refit needs sums
    for stage, cuts in (
        ("prune", measured), ("calibrate for the refit", of_channels), ("refit", measured)
    ):  # fmt: skip
        started = [name for name in watch.started if name.split(" (")[0] == stage]
        assert started == [f"{stage} ({cut})" for cut in cuts], "each is made once"
    assert {"prune", "refit"} <= {*watch.cached}
    assert small.geometry.state_numel <= model.geometry.state_numel / 2
    candidates = set(map(str, Job.from_options(model, TrimOptions(to=0.5)).candidates))
    assert "2heads" in candidates, "fewer heads are one of the cuts"
    assert set(decision["predicted"]) == candidates == set(decision["refused"])
    costs = list(decision["predicted"].values())
    assert costs == sorted(costs)
    assert {item["kept"] for item in decision["points"][1:]} == candidates
    assert measured[:2] == list(decision["predicted"])[:2] and chosen in measured
    assert len(measured) == 3 and any("heads" in name for name in measured)
    assert (out / "statetrim" / "refit.json").exists(), "every shape is refitted"
    ends = {end for _, end in read_seen_texts(small)}
    assert ends == {1024 + 2 * 512}, "calibration, and the text that decided"
    assert not [message for message in caplog.messages if "--skip" in message]
    page = (out / "statetrim" / "report" / "report.md").read_text()
    assert "Why this shape" in page and re.search(rf"\| {chosen}: chosen \|", page)
    watch = RecordingObserver()
    st.trim(model, to=0.5, text=text, out=out, watch=watch, **OPTIONS)
    assert not watch.started, "a finished job has nothing left to do"


def test_one_of_the_three_has_fewer_heads() -> None:
    ranked = ["32x64", "48x40", "40x48", "2heads:48x64", "2heads"]
    assert shortlist(ranked, []) == ["32x64", "48x40", "40x48"]
    assert shortlist(ranked, ["2heads", "2heads:48x64"]) == ["32x64", "48x40", "2heads:48x64"]
    assert shortlist(ranked[::-1], ["2heads"]) == ["2heads", "2heads:48x64", "40x48"]


def test_listed_shapes_are_all_measured_and_the_winner_is_the_result(
    checkpoint: Load, text: Path, tmp_path: Path
) -> None:
    model, out, watch = st.open(checkpoint("qwen3_next")), tmp_path / "small", RecordingObserver()
    shapes = ["8x8", "4x8", "10x4"]
    options: dict[str, Any] = OPTIONS | {"text": text, "tasks": ("text",), "to": ",".join(shapes)}
    small = st.trim(model, out=out, watch=watch, **options)
    assert watch.started.count("calibrate") == 1 and "predict" not in watch.started
    for stage in ("prune", "calibrate for the refit", "refit"):
        started = [name for name in watch.started if name.split(" (")[0] == stage]
        assert started == [f"{stage} ({shape})" for shape in shapes], "each cut is made once"
    decision = st.Decision.load(out / "statetrim" / "decision.json")
    assert list(map(str, decision.points)) == ["12x8", *shapes]
    assert decision.chosen == f"{small.geometry.head_k_dim}x{small.geometry.head_v_dim}"
    original, wide, *_ = decision.points
    assert wide.state_bytes * 3 == original.state_bytes * 2
    compared = decision.load_scores(out / "statetrim")
    assert [*compared] == shapes
    for scores in compared.values():
        assert scores.find(scores.baseline, "text", "kl").value == 0
        assert scores.find(scores.models[1], "text", "kl").value > 0
    page = (out / "statetrim" / "report" / "report.md").read_text()
    assert ".partial" not in page
    plan = st.Plan.load(out / "statetrim" / "plan-4x8.json")
    other = st.prune(model, plan, tmp_path / "other", progress=False)
    assert (other.geometry.head_k_dim, other.geometry.head_v_dim) == (4, 8)
    quiet = RecordingObserver()
    st.trim(model, out=out, watch=quiet, **options)
    assert not quiet.started
    alone = st.trim(
        model, out=tmp_path / "alone", **options | {"to": decision.chosen, "refit": True}
    )
    assert alone.digest == small.digest, "the same cut as without a comparison"


@pytest.mark.parametrize("engine", ["vllm", pytest.param("mlx", marks=pytest.mark.slow)])
def test_widths_by_layer_are_one_of_the_shapes(
    engine: str, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from statetrim.judging import recommendation
    from statetrim.pipelines import by_layer

    # Two layers in one group of vLLM's cache leave no choice.
    in_bytes = lambda measured, share, *_: by_layer.allocate(measured, share)  # noqa: E731
    monkeypatch.setattr(by_layer, "allocate_in_pages", in_bytes)
    # Widths by layer win, whatever random models lose.
    rank = property(lambda cut: not cut.point.is_by_layer)
    monkeypatch.setattr(recommendation.JudgedCut, "rank", rank)
    evaluated: list[EvaluateOptions] = []

    def record(models: list[st.Checkpoint], chosen: EvaluateOptions) -> None:
        evaluated.append(chosen)
        evaluate.run(models, chosen)

    monkeypatch.setattr(stages, "evaluate", SimpleNamespace(run=record))
    dims: dict[str, Any] = {"linear_key_head_dim": 16, "linear_value_head_dim": 16}
    model = st.open(tiny.build("qwen3_next", tmp_path / "model", mamba_ssm_dtype="float32", **dims))
    out, watch = tmp_path / "small", RecordingObserver()
    options = OPTIONS | {"text": text, "to": 0.5, "for_": engine, "by_layer": True}
    small = st.trim(model, out=out, watch=watch, **options)
    assert "sensitivity" in watch.started and "prune (by-layer)" in watch.started
    decision = st.Decision.load(out / "statetrim" / "decision.json")
    *uniform, point = [point for point in decision.points if point.state_dtype == "float32"]
    assert decision.chosen == str(point) == "by-layer" and small.geometry.widths
    assert point.kept == ",".join(f"{i}={k}x{v}" for i, (k, v) in small.geometry.shapes.items())
    assert point.state_bytes == 4 * small.geometry.state_numel
    assert 2 * point.state_bytes <= uniform[0].state_bytes
    assert decision.expected in watch.messages and "points of recall" in decision.expected
    counted = "refused" if point.sequences is None else fit_text(point.sequences)
    assert f"→ {counted}" in decision.expected or "not known" in decision.expected
    assert f"widths by layer: {point.kept}" in watch.messages
    assert (out / "statetrim" / "sensitivity.json").exists()
    _check_16_bit_state(decision, model, in_vllm=engine == "vllm")
    pieces = [chosen.state_piece for chosen in evaluated if chosen.state_dtype == "bfloat16"]
    assert pieces == [1] * (engine == "vllm"), "rounded after every token, as in decoding"
    page = (out / "statetrim" / "report" / "report.md").read_text()
    assert re.search(r"\| by-layer: chosen \|", page)
    assert _load_line(small, "transformers").startswith("load it:   statetrim.load(")
    assert "by-layer: needs a plugin" in page and NEEDS_PLUGIN in page
    assert NEEDS_PLUGIN in ServedBy.of("qwen3_next", small.geometry).texts[0]
    quiet = RecordingObserver()
    st.trim(model, out=out, watch=quiet, **options)
    assert not quiet.started, "a finished job has nothing left to do"


def test_an_engine_that_serves_on_some_hardware_is_not_said_to_refuse(
    checkpoint: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = list(compatibility_of_shape("qwen3_5", Shape(56, 56)))
    monkeypatch.setattr(matrix, "compatibility_of_geometry", lambda *_: rows)
    lines = ServedBy.of("qwen3_5_text", st.open(checkpoint("qwen3_5_text")).geometry).texts
    refused = next(line for line in lines if line.startswith("refused by"))
    assert "llama.cpp on Ampere, " in refused
    assert "llama.cpp," not in refused and "vllm-cpu, " in refused


def _check_16_bit_state(decision: st.Decision, model: st.Checkpoint, *, in_vllm: bool) -> None:
    """For vLLM the original with a state in bfloat16 is one of the points; MLX-LM has no option."""
    rounded = [point for point in decision.points if point.state_dtype != "float32"]
    assert len(rounded) == in_vllm
    assert ("without a cut, a bfloat16 state" in decision.sentence) == in_vllm
    original = decision.points[0]
    for point in rounded:
        assert str(point) == f"{original} in bfloat16" and point.method == "none"
        assert 2 * point.state_bytes == original.state_bytes
        assert str(point) in decision.files
        counted = st.inspect(model, memory_gib=16).deployment.capacity
        assert [point.sequences] == [
            row.fit.sequences for row in counted if row.state_dtype == "bfloat16"
        ]


def test_one_shape_in_all_layers_is_not_compared_twice(
    checkpoint: Load, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from statetrim.pipelines import by_layer

    monkeypatch.setattr(by_layer, "allocate_for_engine", lambda *_: "0=6x4,2=6x4")
    options = TrimOptions(to=0.5, by_layer=True, text=str(text))
    job, watch = Job.from_options(st.open(checkpoint("qwen3_next")), options), RecordingObserver()
    measured: Any = None
    assert by_layer.allocate_by_layer(job, measured, watch) is None
    assert watch.messages == ["no widths by layer are expected to lose less than 6x4 in all"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"to": "8x8"}, "for a goal"), ({"to": 0.5, "for_": "llamacpp"}, "llama.cpp has no plugin")],
)
def test_widths_by_layer_need_a_share_and_a_plugin(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(st.StatetrimError, match=reason):
        TrimOptions(by_layer=True, **options)


def test_an_interrupted_comparison_resumes(
    checkpoint: Load, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, out = checkpoint("delta_net"), tmp_path / "small"
    from statetrim.pipelines import shape_choice

    def interrupt(*args: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shape_choice, "recommend", interrupt)
        st.trim(model, to=0.25, text=text, out=out, **OPTIONS)

    rename = Path.rename

    def interrupt_adoption(source: Path, target: Path) -> Path:
        return interrupt() if source.name.startswith("fitted-") else rename(source, target)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "rename", interrupt_adoption)
        st.trim(model, to=0.25, text=text, out=out, **OPTIONS)
    watch = RecordingObserver()
    resumed = st.trim(model, to=0.25, text=text, out=out, watch=watch, **OPTIONS)
    assert {"calibrate", "predict"} <= set(watch.cached)
    uninterrupted = st.trim(model, to=0.25, text=text, out=tmp_path / "whole", **OPTIONS)
    assert resumed.geometry == uninterrupted.geometry and resumed.digest == uninterrupted.digest


def test_the_plan_says_who_refuses_which_shape(
    checkpoint: Load, text: Path, tmp_path: Path
) -> None:
    command = ["trim", str(checkpoint("qwen3_next")), "--text", str(text), "--dry-run"]
    command += ["--tokens", "1k", "--limit", "2", "-o", str(tmp_path / "out")]
    code, _, plan = run([*command, "--to", "0.5"])
    assert not code and "refused by" in plan and "Cuts to compare" in plan
    assert "by-layer" in run([*command, "--to", "0.5", "--by-layer"])[2] and "by-layer" not in plan
    code, err, _ = run([*command, "--to", "4x100%"])
    assert not code and "is refused by" in err and "vLLM" in err
    code, err, _ = run([*command, "--to", "4x100%", "--for", "mlx"])
    assert not code and "is refused by" not in err, "the engine is chosen"


def test_for_alone_means_half_of_the_bytes(checkpoint: Load, text: Path) -> None:
    options = TrimOptions(for_="sglang", text=str(text), memory_gib=0.01, context=64)
    job = Job.from_options(st.open(checkpoint("qwen3_next")), options)
    assert job.after.state_numel <= job.model.geometry.state_numel / 2
    heads = [target for target in job.candidates if "head" in target.axes]
    assert heads and all(target.share <= 0.5 for target in job.candidates)
    in_dtype = {
        flag: _point(job, job.after, "", flag).sequences or 0 for flag in (None, "bfloat16")
    }
    assert 0 < in_dtype[None] < in_dtype["bfloat16"], "half of the bytes, by a flag"
    sources = prediction_sources(job.corpus, 64, 64, seed=1)
    assert [len(each.ids) for each in sources.values()] == [1, 1], "recall of few tokens too"


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
    command += ["--tokens", "1k", "--limit", "2", "-o", str(tmp_path / "out")]
    code, _, out = run([*command, "--to", "64x100%", "--for", "vllm-cpu"])
    assert not code and caplog.messages == [f"warning: {warning}"]
    assert json.loads(out)["state_share"] == {"asked": 0.5, "kept": 0.25, "why": warning}
    for engine in ("vllm-cpu", "transformers"):  # of half of the heads every engine serves all
        caplog.clear()
        code, _, out = run([*command, "--to", "0.5", "--for", engine])
        assert not code and not caplog.messages
        assert json.loads(out)["state_share"] == {"asked": 0.5, "kept": 0.5, "why": None}


@pytest.fixture
def served_in_float32(tmp_path: Path) -> Path:
    """A hybrid whose config asks vLLM for a float32 state, as released ones do."""
    return tiny.build("qwen3_5_text", tmp_path / "model", mamba_ssm_dtype="float32")


def test_a_flag_that_reaches_the_goal_is_the_answer(
    served_in_float32: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from statetrim.judging.limits import LimitStatus
    from statetrim.judging.recommendation import judge_point
    from statetrim.pipelines import shape_choice

    status = LimitStatus.WITHIN
    monkeypatch.setattr(
        shape_choice, "judge_point", lambda *x: replace(judge_point(*x), limit_status=status)
    )
    options = OPTIONS | {"to": 0.5, "for_": "vllm", "text": text, "out": tmp_path / "out"}
    with pytest.raises(
        NoCutNeeded, match="serve the original with --mamba-ssm-cache-dtype"
    ) as info:
        st.trim(served_in_float32, **options)
    assert not (tmp_path / "out").exists() and "add --state-dtype float32" in str(info.value)
    original, rounded = info.value.decision.points
    assert 2 * rounded.state_bytes == original.state_bytes and str(rounded) in info.value.scores
    words = ["trim", str(served_in_float32), "--to", "0.5", "--for", "vllm", "--text", str(text)]
    words += ["--tokens", "1024", "--length", "64", "--limit", "2", "--batch-size", "2"]
    words += ["--no-control", "-o", str(tmp_path / "out")]
    code, err, shown = run(words)
    assert not code and "no cut in bfloat16" in shown and "evaluate (bfloat16): already done" in err
    assert "no cut needed for 0.5" in shown and "vllm serve" in shown
    answer = json.loads(run([*words, "--json"])[2])
    assert answer["output"] is None and answer["decision"]["chosen"] is None
    anyway = Job.from_options(st.open(served_in_float32), TrimOptions(
        to=0.5, for_="vllm", state_dtype="float32", text=str(text)
    ))  # fmt: skip
    assert not anyway.compares_16_bit_state and max(x.share for x in anyway.candidates) <= 0.5
    status = LimitStatus.BEYOND
    job = Job.from_options(st.open(served_in_float32), TrimOptions(
        to=0.25, for_="vllm", text=str(text)
    ))  # fmt: skip
    assert job.flag_dtype == "bfloat16" and max(x.share for x in job.candidates) == 0.5
    fallback = job.in_default_dtype()
    assert fallback.flag_dtype is None and max(x.share for x in fallback.candidates) == 0.25


def test_a_cut_that_needs_a_16_bit_state_too_is_measured_and_served_with_it(
    served_in_float32: Path, text: Path, tmp_path: Path
) -> None:
    out = tmp_path / "small"
    small = st.trim(served_in_float32, to=0.25, for_="vllm", text=text, out=out, **OPTIONS)
    assert small.geometry.state_numel * 2 == st.open(served_in_float32).geometry.state_numel
    decision = st.Decision.load(out / "statetrim" / "decision.json")
    assert str(decision.chosen).endswith(" in bfloat16")
    assert small.config["mamba_ssm_dtype"] == "bfloat16", "engines read it without a flag too"
    scores = st.Scores.load(out / "statetrim" / "scores.json")
    assert scores.lineage["state"]["dtype"] == "bfloat16"
    page = (out / "statetrim" / "report" / "report.md").read_text()
    assert "needs --mamba-ssm-cache-dtype bfloat16" in page
    assert re.search(r"vllm serve \S+ .*--mamba-ssm-cache-dtype bfloat16", page)
    card = (out / "README.md").read_text()
    assert f"| {decision.chosen}: chosen |" in card and "| no cut in bfloat16" in card
