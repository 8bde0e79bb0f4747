"""Units of metrics: their text, a unit that the test adds, and shares of which less is better."""

import pytest

import statetrim as st
from statetrim.judging.limits import ship_limit
from statetrim.judging.losses import metric_loss, scores_table
from statetrim.tasks.unit import UNITS, Unit

BITS = Unit("bits", " bits", digits=3, groups=("perplexity",), loss_title="bits per byte")


def scores(unit: str, before: list[float], after: list[float], better: bool = False) -> st.Scores:
    """An original and a cut with one metric of a task that is not in TASKS."""
    samples = {"original": before, "cut": after}
    rows = [st.Score(name, "bytes", "mean", unit, better, x) for name, x in samples.items()]
    return st.Scores(list(samples), rows)


def test_a_perplexity_beyond_all_numbers_is_one_that_artifacts_hold() -> None:
    value = UNITS["perplexity"].value([-1e6])
    assert 1e299 < value < 1e300


def test_a_unit_is_added_in_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(UNITS, BITS.name, BITS)
    measured = scores("bits", [1.0, 1.1, 0.9] * 8, [1.5, 1.6, 1.3] * 8)
    x = metric_loss(measured, "cut", "bytes", "mean")
    assert x.loss.estimate == pytest.approx(0.4667, abs=1e-3)
    assert x.sentence.startswith("loss of 0.467 ± 0.0") and x.sentence.endswith(" bits")
    assert ship_limit(x) == 3.0  # that of the group
    for table in (measured.table(), scores_table(measured)):
        assert table.rows == [("bytes", "mean", "24", "1.0000", "1.4667")]


def test_an_unknown_unit_is_refused() -> None:
    measured = scores("share", [1.0], [1.0])
    with pytest.raises(ValueError, match="unit must be one of share, perplexity, nats"):
        st.Score("a", "b", "c", "bits", True, [1.0]).validate()
    for score in measured.scores:
        score.validate()


def test_a_rise_of_errors_is_a_loss() -> None:
    """The original fails 50 times of 100, the cut 90 times; lower is better."""
    errors = scores("share", [1.0] * 50 + [0.0] * 50, [1.0] * 90 + [0.0] * 10)
    assert metric_loss(errors, "cut", "bytes", "mean").loss.estimate == pytest.approx(40.0)
