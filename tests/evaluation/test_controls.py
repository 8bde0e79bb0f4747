"""Random cuts made by masking: they score as the checkpoints that they stand for."""

from pathlib import Path
from typing import Any

import pytest

import statetrim as st
from helpers import tiny
from statetrim.artifacts.scores import Score
from statetrim.artifacts.steps import shape_text
from statetrim.evaluation.controls import random_plan
from statetrim.evaluation.samples import looks
from statetrim.judging.control import controls_of

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns of its slow paths
CUTS = {"keys": "50%x100%", "both axes": "50%x50%", "heads": "2heads", "both": "2heads:50%x50%"}


@pytest.mark.parametrize("kind", CUTS)
def test_a_masked_random_cut_scores_as_its_checkpoint(
    kind: str, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("statetrim.judging.limits.LIMITS", {})  # so that no loss is beyond one
    model = st.open(tiny.build("qwen3_5_text", tmp_path / "model"))
    plan = st.select(model, to=CUTS[kind], method="l1,readout_l1,rand")
    st.prune(model, plan, tmp_path / "cut")
    drawn = random_plan(plan, model, 0)
    st.prune(model, drawn, tmp_path / "drawn")
    options: dict[str, Any] = {"tasks": ["text", "mqar"], "text": text, "limit": 4}
    measured = st.evaluate(tmp_path / "cut", baseline=model, **options)
    written = st.evaluate(tmp_path / "drawn", baseline=model, control=False, **options)
    assert measured.models == ["model", "cut"] and len(controls_of(measured, "cut")) == 4
    for score in written.scores:
        if score.model == "drawn":
            masked = measured.find("random 1.1", score.task, score.metric)
            assert masked.samples == pytest.approx(score.samples, rel=1e-3, abs=1e-5)


def test_only_shapes_that_random_cuts_may_decide_are_compared(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = st.open(tiny.build("delta_net", tmp_path / "model"))
    for to in ("6x8", "4x8"):
        st.prune(model, st.select(model, to=to, method="l1"), tmp_path / to)
    shape = shape_text(st.open(tmp_path / "6x8").geometry)
    compared = "statetrim.evaluation.evaluate.shapes_to_compare"
    monkeypatch.setattr(compared, lambda scores: {shape})
    cuts = [tmp_path / "6x8", tmp_path / "4x8"]
    measured = st.evaluate(cuts, baseline=model, tasks=["text"], text=text, limit=2)
    assert {score.model for score in measured.scores} == {
        "model", "6x8", "4x8", *(f"random 1.{number}" for number in (1, 2, 3, 4))
    }  # fmt: skip


def test_random_plans_differ_and_keep_the_shape(tmp_path: Path) -> None:
    model = st.open(tiny.build("qwen3_5_text", tmp_path / "model"))
    for to in ("50%x50%", "2heads", "2heads:4x4", "0=50%x50%,others=100%x50%"):
        plan = st.select(model, to=to, method="l1,readout_l1,rand")
        shape = shape_text(plan.pruned_geometry(model.geometry))
        drawn = [random_plan(plan, model, seed) for seed in range(4)]
        assert {shape_text(x.pruned_geometry(model.geometry)) for x in drawn} == {shape}
        assert len({x.digest for x in drawn}) > 1


def test_samples_are_doubled_up_to_the_limit() -> None:
    def stops(most: int, *, all_at_once: bool = False) -> list[int]:
        return [look.stop for look in looks(most, all_at_once=all_at_once)]

    assert stops(128) == [32, 64, 128] and stops(100) == [32, 64, 100]
    assert stops(16) == [16] and stops(128, all_at_once=True) == [128]


def test_more_samples_continue_the_first_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """40 samples in two looks are those of one."""
    monkeypatch.setattr("statetrim.evaluation.evaluate.needs_samples", lambda scores: True)
    model = st.open(tiny.build("delta_net", tmp_path / "model"))
    st.prune(model, st.select(model, to="50%x100%", method="l1"), tmp_path / "cut")
    options: dict[str, Any] = {"tasks": ["mqar"], "limit": 40, "control": False}
    twice = st.evaluate(tmp_path / "cut", baseline=model, out=tmp_path / "s.json", **options)
    once = st.evaluate(tmp_path / "cut", baseline=model, all_samples=True, **options)
    assert once.lineage["looks"] == {"sizes": [40], "most": 40}
    assert twice.lineage["looks"] == {"sizes": [32, 40], "most": 40}
    for score in twice.scores:
        whole: Score = once.find(score.model, score.task, score.metric)
        assert score.samples == pytest.approx(whole.samples)
