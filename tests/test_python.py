"""The Python interface: public names, models by path, repr and progress; its types are in
data/interface.txt and helpers/typed_script.py."""

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import statetrim as st
from helpers.tiny import Load
from statetrim.artifacts.decision import MeasuredShape
from statetrim.artifacts.plan import AxisPlan
from statetrim.cut.shape import Shape


def test_every_public_name_leads_somewhere() -> None:
    assert sorted(st.__all__) == sorted(dir(st))
    assert not hasattr(st, "slect")


def test_a_cut_by_names_alone_equals_one_by_objects(
    checkpoint: Load, text: Path, tmp_path: Path
) -> None:
    """Models, statistics and plans can be given as paths, as on the command line."""
    model, sums, plan = str(checkpoint("delta_net")), tmp_path / "sums", str(tmp_path / "plan")
    quick = {"tokens": 1024, "length": 64, "recall": 0.0, "methods": ["drrqr"]}
    statistics = st.calibrate(model, text, out=sums, **quick)
    st.select(model, "drrqr", "50%x100%", statistics=str(sums)).save(plan)
    small = st.prune(model, plan, tmp_path / "small")

    opened = st.open(model)
    selected = st.select(opened, "drrqr", "50%x100%", statistics=statistics)
    assert small.digest == st.prune(opened, selected, tmp_path / "again").digest
    assert st.prepare(model, plan).geometry == small.geometry == st.open(str(small.path)).geometry

    fit = tmp_path / "fit"
    st.calibrate(str(small.path), text, original=model, out=fit, **quick | {"methods": None})
    fitted = st.refit(str(small.path), str(fit), out=tmp_path / "fitted")
    assert fitted.digest != small.digest


def test_tokens_are_counted_as_on_the_command_line(checkpoint: Load, text: Path) -> None:
    model = checkpoint("delta_net")
    by_text, by_number = (
        st.calibrate(model, text, tokens=tokens, skip=skip, length=64)
        for tokens, skip in (("1k", "1K"), (1024, 1024))
    )
    assert by_text.lineage == by_number.lineage
    timings = st.benchmark([], baseline=model, batches=[1], lengths=["1k"], rounds=1)
    assert timings.lineage["lengths"] == [1024]


@pytest.mark.parametrize("wrong", ["many", "", "k", "-1", "1.5k", 1.5, -64, "1 k", "9" * 13, True])
def test_what_is_no_number_of_tokens_is_refused(wrong: Any, checkpoint: Load, text: Path) -> None:
    with pytest.raises(
        st.StatetrimError,
        match=r"is not a number of tokens|tokens must be a whole number or a text",
    ):
        st.calibrate(checkpoint("delta_net"), text, tokens=wrong)


@pytest.fixture(scope="module")
def shown(checkpoint: Load, text: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One object of every class with a repr, from a model whose name holds HTML."""
    folder = tmp_path_factory.mktemp("shown")
    model = st.open(shutil.copytree(checkpoint("delta_net"), folder / "<script>alert(1)<"))
    statistics = st.calibrate(
        model, text, methods=["drrqr", "readout_greedy"], recall=0.0, tokens=1024, length=64
    )
    plan = st.select(model, "drrqr", "50%x50%", statistics=statistics)
    small = st.prune(model, plan, folder / "small")
    every = {"length": 64, "burn_in": 8, "tokens": 256}
    scores = st.evaluate(small, baseline=model, tasks=["mqar"], limit=2)
    compared = [MeasuredShape(Shape(k, 64), "l1", 64 * k) for k in range(1, 129)]
    objects = (
        model, statistics, next(iter(statistics.layers.values())), plan, st.prepare(model, plan),
        scores, scores.scores[0], st.analyze(small, text, baseline=model, **every),
        st.benchmark(small, baseline=model, batches=[1], lengths=[16], rounds=1),
        st.Decision("<script>", compared), model.geometry,
    )  # fmt: skip
    return {type(each).__name__: each for each in objects}


def test_a_prompt_shows_things_in_a_line(shown: dict[str, Any]) -> None:
    for name, value in shown.items():
        text = repr(value)
        assert len(text) < 400 and "\n" not in text, text
        assert name in text
    assert "delta_net, 2 linear-attention layers, state 12 x 8" in repr(shown["Checkpoint"])
    assert "1,024 tokens, 2 layers: key_gram" in repr(shown["Statistics"])
    assert "drrqr" in repr(shown["Plan"]) and "keeps 6 channels" in repr(shown["Plan"])
    assert "mqar, accuracy" in repr(shown["Score"])
    assert "1x64, 2x64" in repr(shown["Decision"]) and "and 120 more" in repr(shown["Decision"])


def test_names_of_any_length_stay_in_a_line(shown: dict[str, Any]) -> None:
    long = "a\x1b[31m\n" * 1000
    score = replace(shown["Score"], model=long, task=long, metric=long)
    long_axes = {"key": AxisPlan(shown["Plan"].axes["key"].kept, long, {long: long})}
    for value in (
        score,
        st.Scores(
            [f"{n}{long}" for n in range(100)],
            [replace(score, task=f"{n}{long}") for n in range(100)],
        ),
        st.Timings([long] * 100, [st.Timing(long, long, 1, 1, 1.0, long)] * 100),
        replace(shown["Plan"], axes=long_axes),
        replace(shown["Checkpoint"], path=Path(long), config={"model_type": long}),
        st.Decision(long, []),
        st.Statistics({}),
    ):
        assert len(repr(value)) < 600 and repr(value).isprintable()


def test_a_bar_is_shown_unless_told_otherwise(
    checkpoint: Load,
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("statetrim.progress.is_watched", lambda: True)
    model, plan = checkpoint("delta_net"), ("l1", "50%x100%")
    sizes: dict[str, Any] = {"tokens": 1024, "length": 64, "recall": 0.0}
    st.calibrate(model, text, **sizes)
    st.prune(model, st.select(model, *plan), tmp_path / "small")
    shown = capsys.readouterr().err
    assert re.search(r"calibrating: +\d+%\|.*/1.02k \[.* tokens/s", shown), shown
    assert re.search(r"selecting: +\d+%\|.*/2 \[.* layers/s", shown)
    assert re.search(r"pruning: +\d+%\|.*/[\d.]+k \[.*B/s", shown)
    st.calibrate(model, text, progress=False, **sizes)
    quiet = st.select(model, *plan, progress=False)
    st.prune(model, quiet, tmp_path / "other", progress=False)
    assert not re.search("calibrating|selecting|pruning", capsys.readouterr().err)


def test_a_function_is_told_of_every_stage(checkpoint: Load, text: Path, tmp_path: Path) -> None:
    seen: list[st.Progress] = []
    quick = {"text": text, "length": 64, "tasks": ("mqar",), "limit": 2, "control": False}
    model = st.open(checkpoint("delta_net"))
    quick |= {"to": "50%x100%", "refit": True, "tokens": "1k"}
    st.trim(model, out=tmp_path / "out", progress=seen.append, **quick)
    stages = [f"{progress.label.rpartition(': ')[2]}, {progress.unit}" for progress in seen]
    assert list(dict.fromkeys(stages)) == [
        "calibrating, tokens", "select by product, layers", "pruning, bytes",
        "refitting, bytes", "mqar, samples",
    ]  # fmt: skip
    last = {progress.label: progress for progress in seen}
    assert all(progress.done == progress.total for progress in last.values()), last
