"""The comparison with random cuts, and how often the verdict errs, by simulation."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from scipy import stats

import statetrim as st
from helpers.measured import Samples, model, random_cuts, scores
from helpers.modules import load_module
from statetrim.artifacts.scores import Score
from statetrim.judging.control import compare_with_controls, controls_of
from statetrim.judging.limits import LimitStatus, limit_status
from statetrim.judging.losses import look_tail, metric_loss
from statetrim.judging.verdict import Outcome, judge_cut, shapes_to_compare
from statetrim.maths.paired import TAIL, Interval, advantage_over_spread, difference_interval

simulation = load_module(Path(__file__).parents[2] / "studies" / "simulate_verdicts.py")
GOOD = model(recall=0.895, nats=3.005, kl=0.01)


@pytest.mark.parametrize("draws", [4, 5, 8])
def test_the_spread_is_the_prediction_interval_of_scipy(draws: int) -> None:
    """One more draw is better 2.5 % of the time: equal samples, so that the draws alone vary."""
    values = torch.tensor([0.3, 0.5, 0.9, 0.4, 0.6, 0.2, 0.8, 0.1], dtype=torch.float64)[:draws]
    interval = advantage_over_spread(torch.zeros(16), values.unsqueeze(1).expand(-1, 16))
    spread = stats.t(draws - 1).ppf(0.975) * float(values.std()) * (1 + 1 / draws) ** 0.5
    assert interval.estimate == pytest.approx(float(values.mean()))
    assert interval.margin == pytest.approx(spread)


def test_a_cut_at_its_limit_rarely_ships() -> None:
    """A sample of `studies/simulate_verdicts.py`; the rule before shipped almost half of them."""
    truth = simulation.Truth(perplexity=1.0, recall=0.5)
    runs = [simulation.run_experiment(truth, seed) for seed in range(100)]
    assert sum(run[0] == "ship" for run in runs) <= 5
    assert sum(run[0] == "ship after recovery" for run in runs) <= 5
    assert sum(run[2] == "ship" for run in runs) > 30


def test_a_cut_at_half_of_its_limits_ships_with_few_samples() -> None:
    runs = [simulation.run_experiment(simulation.Truth(0.5, 0.5), seed) for seed in range(50)]
    assert sum(run[0] == "ship" for run in runs) >= 45
    assert sum(run[1] for run in runs) < 50 * simulation.MOST / 2


@pytest.mark.parametrize(
    ("truth", "least", "most"),
    [
        (simulation.Truth(0.5, 0.5, "uneven"), 45, 50),
        (simulation.Truth(0.5, 1.0, "uneven"), 0, 4),
        (simulation.Truth(0.0, 0.0, "chosen at random"), 0, 4),
    ],
)
def test_random_cuts_that_keep_recall_by_chance_neither_hide_a_good_cut_nor_ship(
    truth: simulation.Truth, least: int, most: int
) -> None:
    """Until a cut had to be better on one group alone, 5 % of the good ones shipped."""
    runs = [simulation.run_experiment(truth, seed) for seed in range(50)]
    assert least <= sum(run[0] == "ship" for run in runs) <= most


def test_a_cut_beyond_its_limits_needs_no_random_cuts() -> None:
    bad = model(recall=0.4, nats=3.4, kl=0.3)
    cuts = {"good": {"shape": "32x64"}, "bad": {"shape": "16x16"}}
    measured = scores({"original": model(), "good": GOOD, "bad": bad}, cuts=cuts)
    assert shapes_to_compare(measured) == {"32x64"}


def test_looks_share_the_error_of_one_interval() -> None:
    def at_look(*sizes: int) -> st.Scores:
        cut = {key: samples[: sizes[-1]] for key, samples in GOOD.items()}
        original = {key: samples[: sizes[-1]] for key, samples in model().items()}
        looks = {"sizes": list(sizes), "most": 64}
        return scores({"original": original, "cut": cut}, looks=looks)

    tails = [look_tail(at_look(*sizes), sizes[-1]) for sizes in ((16,), (16, 32), (16, 32, 64))]
    assert sum(tails) == pytest.approx(TAIL) and look_tail(at_look(64), 64) == TAIL
    measured = at_look(16, 32)
    pairs = measured.pairs("cut", "text", "perplexity")
    expected = difference_interval([pairs], TAIL / 4)
    loss = metric_loss(measured, "cut", "text", "perplexity").loss
    assert loss.low == pytest.approx(
        100 * (torch.expm1(torch.tensor(expected.low)).item()), rel=1e-5
    )


def cut_of_shape(shape: str, **more: Samples) -> st.Scores:
    measured = scores({"original": model(), "cut": GOOD, **more, **random_cuts()})
    controls = {name: {"shape": "8 heads: 0=32x64"} for name in measured.lineage["controls"]}
    cuts = {"cut": {"shape": shape, "methods": ["l1"]}}
    return replace(measured, lineage={"controls": controls, "cuts": cuts})


def test_a_control_of_another_shape_does_not_count() -> None:
    same, other = cut_of_shape("8 heads: 0=32x64"), cut_of_shape("8 heads: 0=60x64")
    assert len(controls_of(same, "cut")) == 5 and controls_of(other, "cut") == []
    assert judge_cut(same).outcome is Outcome.SHIP
    verdict = judge_cut(other)
    assert verdict.outcome is Outcome.UNKNOWN and "no random cuts of its shape" in verdict.reason


def test_perplexity_is_compared_per_token_of_each_document() -> None:
    weights = [50.0, 100.0, 400.0]

    def measured(name: str, nats: float) -> Score:
        samples = [-weight * nats for weight in weights]
        return Score(name, "text", "perplexity", "perplexity", False, samples, weights)

    controls = {f"random {seed}": 3.2 + 0.1 * seed for seed in range(4)}
    figures = {"original": 3.0, "cut": 3.05, **controls}
    lineage = {"controls": {name: {} for name in controls}}
    text = [measured(name, nats) for name, nats in figures.items()]
    both = st.Scores(["original", "cut"], text, lineage)
    loss = metric_loss(both, "cut", "text", "perplexity")
    compared = compare_with_controls(both, loss, 3.0)
    assert compared is not None
    assert compared.advantage.estimate == pytest.approx(3.35 - 3.05)


@pytest.mark.parametrize(
    ("low", "high", "status"),
    [
        (1.0, 3.0, LimitStatus.WITHIN), (1.0, 3.01, LimitStatus.UNCLEAR),
        (3.0, 4.0, LimitStatus.UNCLEAR), (3.01, 4.0, LimitStatus.BEYOND),
    ],
)  # fmt: skip
def test_a_loss_at_its_limit_keeps_it(low: float, high: float, status: LimitStatus) -> None:
    loss = metric_loss(scores({"original": model(), "cut": GOOD}), "cut", "text", "perplexity")
    assert limit_status(replace(loss, loss=Interval((low + high) / 2, low, high))) is status


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_random_cut_that_is_no_number_is_no_evidence(number: float) -> None:
    measured = cut_of_shape("8 heads: 0=32x64")
    control = next(iter(random_cuts()))
    spoiled = [
        replace(x, samples=[number] * len(x.samples))
        if (x.model, x.metric) == (control, "kl")
        else x
        for x in measured.scores
    ]
    assert judge_cut(replace(measured, scores=spoiled)).outcome is Outcome.UNKNOWN


def test_a_cut_that_loses_more_than_one_of_its_random_cuts_is_not_better() -> None:
    """By KL it may be, where random cuts happen to be alike."""
    measured = cut_of_shape("8 heads: 0=32x64")
    loss = metric_loss(measured, "cut", "text", "perplexity")
    comparison = compare_with_controls(measured, loss, 3.0)
    assert comparison is not None and comparison.is_better
    best = (comparison.loss - 0.1, *comparison.losses[1:])
    assert not replace(comparison, losses=best).is_better


@pytest.mark.parametrize(
    ("control", "outcome", "text"),
    [
        (None, Outcome.SHIP, "how much text it learned is not known"),
        (model(recall=0.5, nats=3.3, kl=0.3), Outcome.SHIP, "better than 5 random cuts"),
        (GOOD, Outcome.UNKNOWN, "a random cut with the same training does as well"),
    ],
)
def test_after_recovery_only_a_trained_control_shows_what_was_learned(
    control: Samples | None, outcome: Outcome, text: str
) -> None:
    measured = cut_of_shape("8 heads: 0=32x64", **({"trained": control} if control else {}))
    trained = {"shape": "8 heads: 0=32x64", "recovered": True}
    cuts = {"cut": trained | {"methods": ["l1"]}, "trained": trained | {"methods": ["rand"]}}
    verdict = judge_cut(replace(measured, lineage=measured.lineage | {"cuts": cuts}), "cut")
    assert verdict.outcome is outcome and text in verdict.reason, verdict.reason
    assert ("learned is not known" in verdict.reason) == (control is None)
