"""A rule fails where a change is not a number or cannot be known."""

import math

import pytest

import statetrim as st
from statetrim.judging.gate import find_violation
from statetrim.maths.paired import Interval


@pytest.mark.parametrize("place", range(3))
def test_an_interval_that_is_not_a_number_is_refused(place: int) -> None:
    numbers = [0.0, -1.0, 1.0]
    numbers[place] = math.nan
    with pytest.raises(st.StatetrimError, match="not a number"):
        Interval(*numbers)
    assert Interval(0.0, -math.inf, math.inf).margin == math.inf


def test_documents_without_words_cannot_pass_a_rule() -> None:
    """Resamples of them alone have no perplexity."""
    words = [500.0, 0.0, 0.0, 0.0]
    scores = []
    for model, samples in {
        "original": [-1500.0, -1.0, -2.0, -1.0],
        "cut": [-1505.0, -40.0, 0.0, -1.0],
    }.items():
        name = ("wikitext", "word_perplexity", "perplexity", False)
        scores.append(st.Score(model, *name, samples, words))
    violation = find_violation("wikitext rise > 12%", st.Scores(["original", "cut"], scores))
    assert violation is not None and "cannot be judged" in violation
