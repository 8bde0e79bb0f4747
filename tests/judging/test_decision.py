"""The rule that chooses a shape: a table of cases, and reading of damaged files."""

from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest

from helpers.cases import load_cases
from helpers.measured import point, shape_scores
from statetrim.artifacts.decision import Decision, Prediction
from statetrim.errors import StatetrimError
from statetrim.judging.decision_table import needs_text
from statetrim.judging.recommendation import recommend
from statetrim.judging.verdict import Outcome, judge_cut

ORIGINAL = point("64x64")
CASES = load_cases("shapes")
"""What is decided -> shapes with points of recall and percent of perplexity lost; the choice."""


@pytest.mark.parametrize("case", CASES)
def test_the_rule(case: str) -> None:
    figures, expected = CASES[case]
    for order in permutations(figures):
        points, measured = [ORIGINAL], {}
        kept = order[0][0]
        for shape, *figures in order:  # shapes that lose are deleted as they are measured
            points.append(point(shape))
            measured[shape] = shape_scores(*figures)
            recommendation = recommend(points, measured)
            assert recommendation.chosen
            assert str(recommendation.chosen.point) in (kept, shape)
            kept = str(recommendation.chosen.point)
        assert kept == expected and recommendation.reason.startswith(f"{expected} (")


def reason_for(*figures: float) -> str:
    return recommend([ORIGINAL, point("32x64")], {"32x64": shape_scores(*figures)}).reason


def test_the_sentence_says_what_is_known() -> None:
    assert "the smallest state within the limits" in reason_for(1, 1)
    assert "no shape is within the limits" in reason_for(9, 9)
    assert "too few samples" in reason_for(1, 1, 9.0)
    assert recommend([ORIGINAL], {}).chosen is None and recommend([], {}).chosen is None
    assert recommend([ORIGINAL, point("32x64")], {}).chosen is None, "without its scores"


def test_it_is_the_rule_of_the_verdict() -> None:
    """A loss within its limit by its estimate only is within it for neither."""
    cut = shape_scores(2.5, 1, 1.0)
    assert "too few samples" in recommend([ORIGINAL, point("32x64")], {"32x64": cut}).reason
    assert judge_cut(cut).outcome is Outcome.UNKNOWN


def test_the_original_with_fewer_bits_is_compared_but_not_chosen() -> None:
    cut = point("32x64")
    rounded = replace(cut, shape=ORIGINAL.shape, method="none", state_dtype="bfloat16")
    measured = {"32x64": shape_scores(1.5, 1.5), str(rounded): shape_scores(0.1, 0.1)}
    recommendation = recommend([ORIGINAL, cut, rounded], measured)
    assert recommendation.chosen and recommendation.chosen.point is cut
    assert "without a cut, a bfloat16 state (50%)" in recommendation.reason
    assert recommend([ORIGINAL, rounded], measured).chosen is None


def test_a_cut_that_removes_key_heads_says_so() -> None:
    flagged = replace(point("32x64"), kept="2heads", needs="--flag")
    points = [ORIGINAL, flagged, replace(flagged, kept="1heads", key_heads=1)]
    text = needs_text(Decision("m", points))
    assert text == "2heads, 1heads: needs --flag; 1heads: only 1 key heads stay"


def test_sources_count_alike_in_a_prediction() -> None:
    """Errors on text are a hundredth of those on recall; halving either is worth as much."""
    errors = {
        "a": {"text": {0: 0.01}, "recall": {0: 0.4}},
        "b": {"text": {0: 0.005}, "recall": {0: 0.4}},
        "c": {"text": {0: 0.01}, "recall": {0: 0.2}},
    }
    prediction = Prediction(errors)
    assert prediction.cost("b") == pytest.approx(prediction.cost("c"))
    assert prediction.ranked[-1] == "a"


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "decision.json"
    points = [ORIGINAL, point("32x64")]
    decision = Decision("m", points, "32x64", "why", {"32x64": 0.1}, {"32x64": ["vLLM"]}, {"a": 1})
    decision.save(path)
    assert Decision.load(path) == decision
    named = replace(decision, files={"32x64": "scores-32x64.json", "48x64": "none.json"})
    shape_scores(1, 1).save(tmp_path / "scores-32x64.json")
    assert named.load_scores(tmp_path) == {"32x64": shape_scores(1, 1)}
    outside = replace(decision, files={"32x64": "../scores-32x64.json"})
    (tmp_path / "inner").mkdir()
    with pytest.raises(StatetrimError, match="leads out of"):
        outside.load_scores(tmp_path / "inner")
