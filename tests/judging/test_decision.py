"""The rule that chooses a shape: a table of cases, and reading of damaged files."""

import json
from pathlib import Path

import pytest

from statetrim.artifacts.decision import Decision, MeasuredShape, Prediction
from statetrim.errors import StatetrimError
from statetrim.judging.decision import LOSS_TIE_NATS, decide
from statetrim.maths.paired import Interval

PREDICTION = Prediction({name: {"text": {0: 0.1}} for name in ("64x32", "48x40", "32x64")})


def candidate(
    name: str, loss: float, recall: tuple[float, float] | None, share: float = 0.5
) -> MeasuredShape:
    """A measured shape; `recall` is the change in points and its margin."""
    change = recall and Interval(recall[0], recall[0] - recall[1], recall[0] + recall[1])
    return MeasuredShape(name, share, Interval(loss, loss - 0.01, loss + 0.01), change)


CASES = {
    "lowest loss": ([("64x32", 0.01, (-1, 2)), ("48x40", 0.02, (-1, 2))], "64x32"),
    "not at the cost of recall": ([("64x32", 0.01, (-20, 2)), ("48x40", 0.02, (-1, 2))], "48x40"),
    "recall within its interval": ([("64x32", 0.01, (-2, 2)), ("48x40", 0.02, (-1, 2))], "64x32"),
    "recall just beyond": ([("64x32", 0.01, (-4, 2)), ("48x40", 0.02, (-1, 2))], "48x40"),
    "no recall to lose": ([("64x32", 0.02, None), ("48x40", 0.01, None)], "48x40"),
    "one alone": ([("64x32", 0.5, (-50, 2))], "64x32"),
    "all lose recall": ([("64x32", 0.03, (-30, 2)), ("48x40", 0.01, (-29, 2))], "48x40"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_rule(case: str) -> None:
    measured, expected = CASES[case]
    decision = decide([candidate(*figures) for figures in measured], PREDICTION, {})
    assert decision.chosen == expected
    assert decision.sentence.startswith(expected)


def test_a_tie_goes_to_the_larger_state() -> None:
    small = candidate("32x64", 0.0100, (-1, 2), share=0.4)
    large = candidate("48x40", 0.0100 + LOSS_TIE_NATS / 2, (-1, 2), share=0.5)
    assert decide([small, large], PREDICTION, {}).chosen == "48x40"
    worse = candidate("48x40", 0.0100 + LOSS_TIE_NATS * 2, (-1, 2), share=0.5)
    assert decide([small, worse], PREDICTION, {}).chosen == "32x64"


def test_the_sentence_names_who_recalls_less() -> None:
    lost, kept = candidate("64x32", 0.01, (-20, 2)), candidate("48x40", 0.02, (-1, 2))
    assert "64x32 recalls less" in decide([lost, kept], PREDICTION, {}).sentence


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
    measured = [candidate("64x32", 0.01, (-20, 2)), candidate("48x40", 0.02, None)]
    decision = decide(measured, PREDICTION, {"64x32": ["vLLM"]})
    decision.save(path)
    assert Decision.load(path) == decision
    stored = json.loads(path.read_text())
    for invalid in (
        {"chosen": "1x1"},
        {"chosen": 5},
        {"sentence": "long " * 1000},
        {"predicted": {"64x32": None}},
        {"refused": {"64x32": [3]}},
        {"measured": [{}]},
        {"measured": [stored["measured"][0] | {"loss": {"estimate": "a"}}]},
    ):
        path.write_text(json.dumps(stored | invalid))
        with pytest.raises(
            StatetrimError, match=f"decision.json is not valid: .*{next(iter(invalid))}"
        ):
            Decision.load(path)
