"""Paired statistics: intervals cover by simulation, p-values are those of scipy. Numbers in
untrusted files, and a few of many."""

import math
from collections.abc import Callable
from math import inf, nan

import pytest
import torch
from scipy import stats

from statetrim.artifacts.scores import Score, Scores
from statetrim.judging.losses import metric_loss
from statetrim.maths.formatting import evenly_spaced
from statetrim.maths.paired import (
    Interval,
    Pairs,
    advantage_over_spread,
    difference_interval,
    mcnemar,
    zero_event_bound,
)
from statetrim.maths.units import is_integer_list, is_number

EXPERIMENTS = 1000


def coverage(truth: float, draw: Callable[[torch.Generator], list[Pairs]]) -> float:
    covered = 0
    for seed in range(EXPERIMENTS):
        interval = difference_interval(draw(torch.Generator().manual_seed(seed)))
        assert interval.low <= interval.estimate <= interval.high
        covered += interval.low <= truth <= interval.high
    return covered / EXPERIMENTS


def answers(generator: torch.Generator, count: int, lost: float, won: float) -> Pairs:
    """Right and wrong answers: 60% right before; some of them lost, some of the others won."""
    before = (torch.rand(count, generator=generator) < 0.6).double()
    flip = torch.rand(count, generator=generator)
    after = torch.where(before == 1, (flip >= lost).double(), (flip < won).double())
    return Pairs(before, after)


def documents(generator: torch.Generator, count: int) -> Pairs:
    """Log-likelihoods of documents of different lengths, 0.05 nats per word worse after."""
    words = torch.exp(torch.randn(count, generator=generator, dtype=torch.float64) * 0.6 + 6)
    noise = torch.randn(count, generator=generator, dtype=torch.float64)
    before = words * 3.0 + torch.randn(count, generator=generator, dtype=torch.float64) * words**0.5
    return Pairs(before, before + 0.05 * words + 0.02 * noise * words, words)


@pytest.mark.parametrize("count", [40, 200])
def test_intervals_of_accuracy_cover_the_truth(count: int) -> None:
    truth = 0.4 * 0.1 - 0.6 * 0.3
    covered = coverage(truth, lambda generator: [answers(generator, count, 0.3, 0.1)])
    assert 0.93 <= covered <= 0.97, covered


def test_intervals_of_perplexity_cover_the_truth() -> None:
    covered = coverage(0.05, lambda generator: [documents(generator, 62)])
    assert 0.93 <= covered <= 0.97, covered


def test_intervals_of_a_mean_of_tasks_cover_the_truth() -> None:
    """Tasks of different size, averaged with equal weight."""
    truth = ((0.4 * 0.1 - 0.6 * 0.3) + (0.4 * 0.2 - 0.6 * 0.2)) / 2

    def draw(generator: torch.Generator) -> list[Pairs]:
        return [answers(generator, 60, 0.3, 0.1), answers(generator, 150, 0.2, 0.2)]

    assert 0.93 <= coverage(truth, draw) <= 0.97


def test_two_samples_are_enough_for_an_interval() -> None:
    before, after = torch.tensor([1.0, 2.0]), torch.tensor([1.5, 3.5])
    interval = difference_interval([Pairs(before, after)])
    expected = stats.ttest_rel(after, before).confidence_interval()
    assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize(("draws", "samples"), [(1, 8), (8, 1), (1, 1)])
def test_one_draw_or_one_sample_excludes_nothing(draws: int, samples: int) -> None:
    others = torch.rand(draws, samples, dtype=torch.float64)
    advantage = advantage_over_spread(others.mean(0) / 2, others)
    assert advantage.low < -100 and advantage.high > 100


def test_pairing_is_what_makes_the_interval_short() -> None:
    generator = torch.Generator().manual_seed(0)
    pairs = documents(generator, 62)
    shuffled = Pairs(
        pairs.before, pairs.after[torch.randperm(62, generator=generator)], pairs.weights
    )
    assert difference_interval([pairs]).margin < 0.1 * difference_interval([shuffled]).margin


@pytest.mark.parametrize(("lost", "won"), [(0, 0), (1, 0), (3, 9), (9, 3), (5, 5), (400, 700)])
def test_mcnemar_equals_scipys_binomial_test(lost: int, won: int) -> None:
    before = torch.tensor([1.0] * (lost + 7) + [0.0] * (won + 4))
    after = torch.tensor([0.0] * lost + [1.0] * (7 + won) + [0.0] * 4)
    exact = stats.binomtest(lost, lost + won).pvalue if lost + won else 1.0
    seen = stats.binom.pmf(min(lost, won), lost + won, 0.5)
    middle = exact - (0.5 * seen if lost == won and lost else seen)
    assert mcnemar(before, after) == pytest.approx(middle if lost + won else 1.0, abs=1e-12)


def test_what_never_happened_in_n_trials_may_happen_three_times_in_n() -> None:
    assert zero_event_bound(100) == pytest.approx(0.03, abs=0.001)


def scores(before: list[float], after: list[float], unit: str = "share") -> Scores:
    task, metric = ("fda", "contains") if unit == "share" else ("lambada_openai", "perplexity")
    rows = [("old", before), ("new", after)]
    return Scores(
        ["old", "new"],
        [Score(model, task, metric, unit, unit == "share", row) for model, row in rows],  # type: ignore[arg-type]
    )


def test_verdicts_say_loss_gain_or_how_much_cannot_be_excluded() -> None:
    lost = scores([1.0] * 80 + [0.0] * 20, [1.0] * 40 + [0.0] * 60)
    verdict = metric_loss(lost, "new", "fda", "contains")
    assert verdict.sentence.startswith("loss of 40.00 ± ") and verdict.sentence.endswith("points")
    assert verdict.p is not None and verdict.p < 1e-10
    won = metric_loss(scores([0.0] * 60 + [1.0] * 40, [1.0] * 100), "new", "fda", "contains")
    assert won.sentence.startswith("gain of 60.00 ± ")
    same = metric_loss(scores([1.0, 0.0] * 50, [1.0, 0.0] * 50), "new", "fda", "contains")
    assert same.sentence == "no loss within 2.95 points"  # 1 - 0.05 ** (1 / 100)
    at_chance = metric_loss(scores([0.0] * 20, [0.0] * 20), "new", "fda", "contains")
    too_few = "20 samples of fda are too few to tell the original from chance"
    assert at_chance.sentence == f"not informative: {too_few}"
    at_chance = metric_loss(scores([0.0] * 200, [0.0] * 200), "new", "fda", "contains")
    reason = "the original is less than 5 points above chance on 200 samples of fda"
    assert at_chance.sentence == f"not informative: {reason}"

    worse = scores([-2.0] * 30, [-2.0 - math.log(1.1)] * 30, "perplexity")
    assert worse.find("old", "lambada_openai", "perplexity").value == pytest.approx(math.exp(2))
    verdict = metric_loss(worse, "new", "lambada_openai", "perplexity")
    assert verdict.loss.estimate == pytest.approx(10.0) and verdict.sentence.endswith("%")


def test_scores_of_other_samples_are_not_compared() -> None:
    with pytest.raises(ValueError, match="other samples"):
        scores([1.0, 0.0], [1.0]).pairs("new", "fda", "contains")
    assert -Interval(1.0, 0.5, 2.0) == Interval(-1.0, -2.0, -0.5)


@pytest.mark.parametrize("place", range(3))
def test_an_interval_that_is_not_a_number_is_refused(place: int) -> None:
    numbers = [0.0, -1.0, 1.0]
    numbers[place] = math.nan
    with pytest.raises(ValueError, match="not a number"):
        Interval(*numbers)
    assert Interval(0.0, -math.inf, math.inf).margin == math.inf


def test_a_few_of_many_keep_both_ends() -> None:
    assert evenly_spaced([1, 2, 3], 3) == [1, 2, 3]
    assert evenly_spaced(range(100), 4) == [0, 33, 66, 99]
    assert evenly_spaced("abc", 2) == ["a", "c"]
    assert evenly_spaced("abc", 1) == ["a"]


def test_what_counts_as_a_number_in_an_untrusted_file() -> None:
    assert is_number(0) and is_number(-1.5)
    assert not any(map(is_number, (True, None, "1", nan, inf, 1e301)))
    assert is_integer_list([1, 2])
    assert not any(map(is_integer_list, ([1.0], [True], (1,))))
