"""The model card of a cut: its content and order, and that names in it are escaped."""

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import statetrim as st
from helpers.tiny import Load
from statetrim.artifacts.card.model_card import model_card, recovered_card, refitted_card
from statetrim.artifacts.scores import Score
from statetrim.judging.decision_table import with_measurements
from statetrim.judging.verdict import judge_cut

NASTY = "x\n---\nlicense: gpl\n---\n# Heading\n| a | b |\n<script>alert(1)</script> `code` [a](b)"
LICENSED = "---\nlicense: apache-2.0\nlanguage: [en, de]\nlibrary_name: {a: b}\n---\nbody\n"

RECORD = {
    "options": {"layerwise": False, "rank": 4}, "teacher": "x",
    "coverage": {"projections": 1, "layers": 1, "convolutions": 0},
    "curve": [{"loss": 2.0, "tokens": 0}, {"loss": 1.0, "tokens": 10}],
    "layers": {"0": {"before": 0.5, "after": 0.1}},
}  # fmt: skip
"""The fields of the records of a recovery and of a refit that cards read."""


@pytest.fixture(scope="module")
def model(checkpoint: Load) -> st.Checkpoint:
    return st.open(checkpoint("qwen3_5_text"))


def scores(cut: str = "SMALL", lost: float = 0.5) -> st.Scores:
    figures: dict[str, list[float]] = {
        "original": [0.9] * 40,
        cut: [0.9 - lost] * 40,
        "rand": [0.1] * 40,
    }
    return st.Scores(
        list(figures),
        [Score(name, "mqar", "accuracy", "share", True, rows) for name, rows in figures.items()],
    )


def card(model: st.Checkpoint, original: str = "", **changes: Any) -> str:
    plan = st.select(model, "l1", to="6x100%")
    after = plan.pruned_geometry(model.geometry)
    changed = replace(plan, axes={"key": replace(plan.axes["key"], **changes)})
    return model_card(model, changed, after, 1234, original)


def front_matter(text: str) -> dict[str, Any]:
    match = re.match(r"---\n(.*?)\n---\n", text, re.S)
    assert match
    fields = yaml.safe_load(match[1])
    assert isinstance(fields, dict)
    return fields


def test_measurements_and_warnings_stand_above_how_it_was_made(model: st.Checkpoint) -> None:
    measured = scores()
    text = with_measurements(card(model), measured, judge_cut(measured))
    order = [text.index(part) for part in ("| state of a head", "## Measured", "**Do not ship**",
                                           "- Warning: recall falls by 50.0 points",
                                           "| task | metric |", "## How it was made")]  # fmt: skip
    assert order == sorted(order)
    assert "| mqar | accuracy | 40 | 90.0% | 40.0% | 10.0% |" in text
    assert re.search(r"state per sequence, float32 \| [\d.]+ KiB \| [\d.]+ KiB \| -50.0%", text)
    assert "not measured" not in text


def test_a_second_measurement_takes_the_place_of_the_first(model: st.Checkpoint) -> None:
    once = with_measurements(card(model), scores(), judge_cut(scores()))
    better = scores(lost=0.0)
    twice = with_measurements(once, better, judge_cut(better))
    assert twice.count("## Measured") == 1 and "90.0% | 90.0%" in twice
    assert twice == with_measurements(card(model), better, judge_cut(better))


def test_what_was_measured_of_other_weights_is_taken_out(model: st.Checkpoint) -> None:
    measured = with_measurements(card(model), scores(), judge_cut(scores()))
    for after in (
        recovered_card(measured, "name", RECORD),
        refitted_card(measured, "name", RECORD),
    ):
        assert "## Measured" not in after and "was not measured since" in after
        assert "## How it was made" in after


def test_no_step_claims_the_tensors_that_a_later_one_changed(model: st.Checkpoint) -> None:
    """With several steps, every sentence on unchanged bytes names the step that copied them."""
    pruned = card(model)
    assert "All other tensors are the original's, byte for byte." in pruned
    refitted = refitted_card(pruned, "name", RECORD)
    for later in (refitted, recovered_card(pruned, "name", RECORD),
                  recovered_card(refitted, "name", RECORD)):  # fmt: skip
        sentences = re.findall(r"[^.]*byte for byte[^.]*\.", later)
        assert len(sentences) == later.count("byte for byte") == later.count("\n## ")
        assert "the steps below changed some of them" in sentences[0]
        for sentence in sentences:
            assert re.match(r"\s*(The cut|The refit|Recovery) copied all other tensors", sentence)


def test_the_licence_is_carried_where_it_is_plain(model: st.Checkpoint) -> None:
    fields = front_matter(card(model, LICENSED))
    assert fields == {
        "license": "apache-2.0", "language": ["en", "de"], "tags": ["statetrim", "pruned"]
    }  # fmt: skip


@pytest.mark.parametrize("place", ["method", "option", "directory", "hub", "model", "task"])
def test_names_stay_text(place: str, model: st.Checkpoint, tmp_path: Path) -> None:
    """Names of methods, options, directories, models and tasks are escaped, line breaks too."""
    measured, changes = scores(), {}
    flat = NASTY.replace("/", "_")
    if place == "method":
        changes = {"method": NASTY}
    elif place == "option":
        changes = {"options": {NASTY: NASTY}}
    elif place == "directory":
        shutil.copytree(model.path, tmp_path / flat)
        model = st.open(tmp_path / flat)
    elif place == "hub":
        snapshot = tmp_path / f"models--{flat}--b" / "snapshots" / "abc"
        shutil.copytree(model.path, snapshot)
        model = st.open(snapshot)
    elif place == "model":
        measured = scores(cut=NASTY)
    else:
        measured = st.Scores(measured.models, [replace(x, task=NASTY) for x in measured.scores])
    text = with_measurements(card(model, **changes), measured, judge_cut(measured))
    fields = front_matter(text)
    assert set(fields) <= {"tags", "base_model"} and fields["tags"] == ["statetrim", "pruned"]
    body = text.split("\n---\n", 1)[1]
    headings = [line for line in body.splitlines() if line.startswith("#")]
    assert [line.split(",")[0] for line in headings[1:]] == ["## Measured", "## How it was made"]
    assert "alert(1)" in text or place == "hub"
    outside = re.sub(r"`[^`]*`", "", re.sub(r"<!--.*?-->", "", body))
    assert not re.search(r"(?<!\\)[<\[]", outside), outside
    assert not any(line.startswith(("---", "license")) for line in body.splitlines())
