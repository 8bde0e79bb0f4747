"""The verdict: a table of cases, and the known ways to hide a loss from it."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

import statetrim as st
from helpers.measured import (
    LOADS,
    ROWS,
    Samples,
    answers,
    model,
    random_cuts,
    rows,
    scores,
    shape_scores,
    shifted,
)
from statetrim.judging.limits import LIMITS, Limit
from statetrim.judging.losses import averaged_settings_text, metric_loss, task_losses
from statetrim.judging.verdict import Outcome, Verdict, cut_models, cut_warnings, judge_cut

ORIGINAL = model()
LIKELIHOODS = ORIGINAL["text", "perplexity"]
GOOD = model(recall=0.895, nats=3.005, kl=0.01)
RANDOM = random_cuts()
EASY = {("mqar", f"pairs_2_in_{n}"): rows(0.95, seed=n) for n in range(100)}
COLLAPSED = {load: 0.9 for load in LOADS} | {63: 0.02}


def judged(cut: Samples, *, controls: Mapping[str, Samples] = RANDOM, **options: Any) -> Verdict:
    return judge_cut(scores({"original": ORIGINAL, "cut": cut, **controls}), **options)


# Name -> the call, the expected outcome, and a part of its reason.
CASES: dict[str, tuple[Callable[[], Verdict], Outcome, str]] = {
    "a good cut": (lambda: judged(GOOD), Outcome.SHIP, "within the limits"),
    "random cuts that keep recall": (
        lambda: judged(GOOD, controls=random_cuts(recall=0.9)), Outcome.SHIP,
        "random cuts on text; recall does not depend on the state here: a random cut loses"),
    "a gain is no loss": (
        lambda: judged(model(recall=0.92, nats=2.98, kl=0.01)), Outcome.SHIP, "within"),
    "recall lost, perplexity kept": (
        lambda: judged(model(recall=0.5, nats=3.0, kl=0.05)), Outcome.STOP, "recall falls by 40"),
    "recall lost, perplexity better": (
        lambda: judged(model(recall=0.5, nats=2.9, kl=0.05)), Outcome.STOP, "recall falls by 40"),
    "some recall lost": (
        lambda: judged(model(recall=0.84, nats=3.0, kl=0.05)), Outcome.RECOVER, "may restore"),
    "some recall lost after recovery": (
        lambda: judge_cut(scores(
            {"original": ORIGINAL, "cut": model(recall=0.84, nats=3.0, kl=0.05)},
            cuts={"cut": {"recovered": True}})),
        Outcome.STOP, "after recovery"),
    "some perplexity lost": (
        lambda: judged(model(nats=3.06, kl=0.05)), Outcome.RECOVER, "perplexity rises by 6."),
    "much perplexity lost": (
        lambda: judged(model(nats=3.4, kl=0.5)), Outcome.STOP,
        "recovery restored up to 10% in measurements"),
    "one load collapsed": (
        lambda: judged(model(recall=COLLAPSED, kl=0.05)), Outcome.STOP, "recall falls by"),
    "one load collapsed among a hundred easy ones": (
        lambda: judge_cut(scores(
            {"original": ORIGINAL | EASY, "cut": model(recall=COLLAPSED, kl=0.05) | EASY})),
        Outcome.STOP, "mqar at 63 pairs (limit 10 points)"),
    "no engine serves it": (
        lambda: judged(GOOD, served=[]), Outcome.STOP, "no known engine"),
    "an engine serves it": (lambda: judged(GOOD, served=["vLLM"]), Outcome.SHIP, "within"),
    "nothing measured": (lambda: judge_cut(None), Outcome.UNKNOWN, "was not measured"),
    "only the original measured": (
        lambda: judge_cut(scores({"original": ORIGINAL})), Outcome.UNKNOWN, "was not measured"),
    "no recall measured": (
        lambda: judged(only(GOOD, "text")),
        Outcome.UNKNOWN, "cannot be compared"),
    "recall nowhere measured": (
        lambda: judge_cut(scores({"original": only(ORIGINAL, "text"), "cut": only(GOOD, "text")})),
        Outcome.UNKNOWN, "its recall was not measured: add `mqar` to --tasks"),
    "no perplexity measured": (
        lambda: judge_cut(scores({"original": only(ORIGINAL, "mqar"), "cut": only(GOOD, "mqar")})),
        Outcome.UNKNOWN, "its perplexity was not measured: add `text` to --tasks"),
    "the original cannot recall": (
        lambda: judge_cut(scores({"original": model(0.02), "cut": model(0.01, 3.005, 0.01)})),
        Outcome.UNKNOWN, "its recall is unknown: the original is less than 5 points above chance "
        "on 64 samples of mqar; choose a task that the original can do"),
    "too few samples to know whether the original recalls": (
        lambda: judge_cut(scores({name: figures | {("mqar", "pairs_4"): answers(0.5, 8)}
                                for name, figures in (("original", only(ORIGINAL, "text")),
                                                      ("cut", only(GOOD, "text")))})),
        Outcome.UNKNOWN, "its recall is unknown: 8 samples of mqar are too few to tell the "
        "original from chance; raise --limit, or choose a task that the original can do"),
    "the original reads no better than by guessing": (
        lambda: judge_cut(
            scores({"original": ORIGINAL, "cut": GOOD}, vocabulary=20)),
        Outcome.UNKNOWN, "its perplexity is unknown: the original predicts 64 samples of text no "
        "better than chance; choose a text that the original can predict"),
    "few samples": (lambda: few(3), Outcome.UNKNOWN, "3 samples of"),
    "no control": (lambda: judged(GOOD, controls={}), Outcome.UNKNOWN, "no random cut"),
    "three controls": (
        lambda: judged(GOOD, controls=dict([*RANDOM.items()][:3])),
        Outcome.UNKNOWN, "3 random cuts of its shape were measured, and 4 are needed"),
    "the controls keep the limits too": (
        lambda: judged(GOOD, controls=random_cuts(0.895, 3.005, 0.01)),
        Outcome.UNKNOWN, "random cuts keep the limits too, and are as good"),
    "better than controls that keep the limits": (
        lambda: judged(GOOD, controls=random_cuts(0.9, 3.02, 0.1)),
        Outcome.SHIP, "is better than 5 random cuts on text; recall does not depend on the state"),
    "better than the controls on recall, and as far from the original on text": (
        lambda: judged(model(recall=0.895, nats=3.005, kl=0.9)),
        Outcome.SHIP, "random cuts on mqar; on text it is within their spread, a random cut loses"),
    "some of the controls keep recall": (
        lambda: judged(GOOD, controls=uneven_cuts(0.9)), Outcome.SHIP,
        "better than 5 random cuts on text; on mqar it is within their spread, a random cut loses "
        "30.0 points"),
    "better on text than the controls, and before a refit no better than their mean on recall": (
        lambda: refitted(model(recall=0.4, nats=3.005, kl=0.01), uneven_cuts(0.9)),
        Outcome.UNKNOWN, "on mqar it is within the spread of 5 random cuts"),
    "no better than the controls, which lose more than the limit": (
        lambda: judged(model(recall=0.895, nats=3.005, kl=0.9), controls=uneven_cuts(0.9)),
        Outcome.UNKNOWN, "on text it is within the spread of 5 random cuts"),
    "3 points with a margin of 3": (
        lambda: judged(GOOD | {("text", "perplexity"): shifted(LIKELIHOODS, -2.8, 25.0)}),
        Outcome.UNKNOWN, "64 samples of text leave open whether it keeps its limit"),
    "a setting that may be beyond its limit": (
        lambda: judged(GOOD | {("mqar", "pairs_63"): shifted(rows(0.9, seed=63), -0.08, 0.2)}),
        Outcome.UNKNOWN, "64 samples of mqar at 63 pairs leave open"),
    "not a number": (
        lambda: judged(GOOD | {("text", "kl"): [math.nan] * ROWS}), Outcome.STOP, "not a number"),
    "scores in doubt": (
        lambda: judged(GOOD, doubts=["they are of other weights"]),
        Outcome.UNKNOWN, "other weights"),
    "an engine found a fault": (
        lambda: judged(GOOD, faults=["vLLM agrees with transformers less than on the original"]),
        Outcome.STOP, "vLLM agrees"),
    "an engine found a fault, and nothing was measured": (
        lambda: judge_cut(None, faults=["layer 2: 16 of 56 rows"]), Outcome.STOP, "layer 2"),
    "in doubt, and lost anyway": (
        lambda: judged(model(recall=0.5), doubts=["they are of other weights"]),
        Outcome.STOP, "recall falls"),
}  # fmt: skip


def only(samples: Samples, task: str) -> Samples:
    return {key: value for key, value in samples.items() if key[0] == task}


def uneven_cuts(kept: float) -> dict[str, Samples]:
    """Random cuts of which two keep so much recall, and three lose half of the answers."""
    shares = (kept, kept, 0.4, 0.4, 0.4)
    recall = [only(model(recall=share), "mqar") for share in shares]
    return {name: RANDOM[name] | x for name, x in zip(RANDOM, recall, strict=True)}


def refitted(masked: Samples, controls: Mapping[str, Samples]) -> Verdict:
    """The verdict on the good cut, which was this one before its refit."""
    models = {"original": ORIGINAL, "cut": GOOD, "cut as cut": masked, **controls}
    return judge_cut(scores(models, cuts={"cut": {"masked": "cut as cut"}}), "cut")


def few(count: int) -> Verdict:
    """The verdict on the good cut from its first `count` samples."""
    cut = {key: shifted(value, 0.0, 0.02) for key, value in GOOD.items()}
    models = {"original": ORIGINAL, "cut": cut, **RANDOM}
    short = {name: {key: x[:count] for key, x in models[name].items()} for name in models}
    return judge_cut(scores(short))


@pytest.mark.parametrize("case", CASES)
def test_cases(case: str) -> None:
    judge, outcome, expected_text = CASES[case]
    result = judge()
    assert (result.outcome, expected_text in result.reason) == (outcome, True), result.reason


def test_only_random_cuts_decide_what_more_samples_cannot_change() -> None:
    by_random = {case for case, (judge, *_) in CASES.items() if judge().as_random}
    expected = {case for case, (*_, text) in CASES.items() if "spread of 5" in text}
    assert by_random == expected | {"the controls keep the limits too"}


def test_limits_are_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed limit changes the verdict: LIMITS is the only place that defines them."""
    lost = model(recall=0.84, nats=3.0, kl=0.05)
    assert judged(lost).outcome is Outcome.RECOVER
    monkeypatch.setitem(LIMITS, "recall", Limit(ship=8.0, recoverable=10.0, setting=10.0))  # type: ignore[arg-type]
    assert judged(lost).outcome is Outcome.SHIP
    monkeypatch.setitem(LIMITS, "recall", Limit(ship=1.0, recoverable=2.0, setting=10.0))  # type: ignore[arg-type]
    assert judged(lost).outcome is Outcome.STOP


def test_facts_are_compared_with_random_cuts() -> None:
    result = judged(model(recall=0.5, nats=3.06, kl=0.05))
    first, second = result.facts
    assert first.startswith("mqar accuracy 89.9% → 49.9% (loss 40.0 points, 95%: 40.0 ")
    assert re.search(r"; at \d+ pairs 40\.\d points; 5 random cuts lose 48\.\d points to 51", first)
    assert second.startswith("text perplexity ") and re.search(r"loss 6\.\d%, 95%: [56]\.", second)
    assert any("recall falls by" in text for text in result.warnings)


def test_no_fact_shows_a_negative_zero() -> None:
    facts = judge_cut(shape_scores(recall=0.0, perplexity=0.0, margin=0.03)).facts
    assert facts and not any("-0.0" in fact for fact in facts), facts


def test_the_reason_names_the_worst_setting() -> None:
    some = {load: 0.9 for load in LOADS} | {32: 0.84, 63: 0.86}
    result = judged(model(recall=some, nats=3.005, kl=0.01))
    assert result.outcome is Outcome.SHIP and " at 32 pairs)" in result.reason
    lost = judged(model(recall={load: 0.8 for load in LOADS} | {32: 0.74}, kl=0.05))
    assert lost.outcome is Outcome.RECOVER and lost.worst == "recall"
    assert re.search(r"on mqar \(limit 3 points\), and by 16\.\d points at 32 pairs", lost.reason)


def test_what_chose_the_shape_is_said_and_can_forbid_to_ship() -> None:
    def of_weights(digest: str, samples: dict[str, Samples]) -> st.Scores:
        measured = scores(samples)
        return replace(measured, lineage=measured.lineage | {"models": ["o", digest]})

    worse = {"original": ORIGINAL, "fitted": model(nats=3.06, kl=0.05)}
    now = of_weights("c", {"original": ORIGINAL, "cut": GOOD, **RANDOM})
    alike = of_weights("c", {"original": ORIGINAL, "fitted": GOOD})
    shipped = judge_cut(now, earlier=alike)
    assert shipped.outcome is Outcome.SHIP
    assert re.search(r"the samples that chose its shape show 0\.\d% on text and", shipped.reason)
    assert judge_cut(now, earlier=of_weights("c", worse)).outcome is Outcome.UNKNOWN
    assert "chose" not in judge_cut(now, earlier=of_weights("d", worse)).reason


LOST = model(recall=0.7, nats=3.0, kl=0.05)


def with_tasks(before: list[float], after: list[float], *tasks: str) -> dict[str, Samples]:
    """The lossy cut and the original, with the same samples of more tasks."""
    more = [dict.fromkeys([(task, "contains") for task in tasks], x) for x in (before, after)]
    return {"original": ORIGINAL | more[0], "cut": LOST | more[1]}


def changed(task: str, metric: str, samples: list[float] | None) -> dict[str, Samples]:
    """The original and the lossy cut, with other samples of one metric; None: without it."""
    cut = {key: value for key, value in LOST.items() if key != (task, metric)}
    return {"original": ORIGINAL, "cut": cut | ({(task, metric): samples} if samples else {})}


FAR, RENAMED = ("mqar", "pairs_16_in_512"), ("squad_v9", "found")
HIDDEN: dict[str, tuple[dict[str, Samples], str]] = {
    "a floor task is added": (
        with_tasks([0.0] * 100, [0.0] * 100, "fda"), "recall falls by"),
    "three floor tasks are added": (
        with_tasks([0.0] * 50, [0.0] * 50, "niah_single_1", "fda", "swde"), "recall falls by"),
    "a task a little above nothing is added": (
        with_tasks(answers(0.02, 100), [0.0] * 100, "fda"), "recall falls by"),
    "easy tasks are added": (
        with_tasks(*[answers(0.95, 400)] * 2, "fda", "swde", "niah_single_1"), "recall falls by"),
    "the setting that collapsed is left out of the mean": (
        {"original": ORIGINAL | {FAR: rows(0.979)}, "cut": GOOD | {FAR: rows(0.013)}},
        "recall falls by"),
    "the file's own mean is kinder than its settings": (
        changed("mqar", "accuracy", rows(0.9)), "recall falls by"),
    "a load is missing in the cut": (changed("mqar", "pairs_63", None), "cannot be compared"),
    "not a number": (changed("mqar", "pairs_8", [math.nan] * ROWS), "is not a number"),
    "infinite": (changed("text", "perplexity", [-math.inf] * ROWS), "is not a number"),
    "two samples": (
        {name: {("fda", "contains"): [1.0] * 2} for name in ("original", "cut")},
        "was not measured"),
    "another name": (
        {"original": only(ORIGINAL, "text") | {RENAMED: answers(0.9, 200)},
         "cut": only(GOOD, "text") | {RENAMED: answers(0.5, 200)}},
        "accuracy falls by"),
    "fewer samples for the cut": (
        {"original": ORIGINAL, "cut": {key: LOST[key][:40] for key in LOST}},
        "cannot be compared"),
    "the control is the cut itself": (
        {"original": ORIGINAL, "cut": GOOD, **dict.fromkeys(RANDOM, GOOD)},
        "these tasks do not show the state"),
    "the cut is called a control": (
        {"original": ORIGINAL, "rand": LOST}, "may restore"),
}  # fmt: skip


@pytest.mark.parametrize("way", HIDDEN)
def test_a_hidden_loss_does_not_ship(way: str) -> None:
    models, expected_text = HIDDEN[way]
    measured = scores(models)
    verdicts = [judge_cut(measured, name) for name in cut_models(measured)]
    assert verdicts and all(verdict.outcome is not Outcome.SHIP for verdict in verdicts)
    assert expected_text in verdicts[0].reason


def test_twice_the_same_figure_is_refused() -> None:
    """Duplicates are rejected: the better one could be first."""
    good = scores({"original": ORIGINAL, "cut": GOOD})
    lost = [x for x in scores({"original": ORIGINAL, "cut": LOST}).scores if x.model == "cut"]
    with pytest.raises(st.StatetrimError, match="twice"):
        st.Scores(good.models, [*good.scores, *lost])
    with pytest.raises(st.StatetrimError, match="twice"):
        st.Scores(["original", "cut", "cut"], good.scores)


@pytest.mark.parametrize("change", [{"higher_is_better": False}, {"unit": "nats"}])
def test_a_figure_turned_round_is_not_compared(change: dict[str, Any]) -> None:
    measured = scores({"original": ORIGINAL, "cut": LOST})
    turned = [
        replace(x, **change) if (x.model, x.metric) == ("cut", "pairs_8") else x
        for x in measured.scores
    ]
    verdict = judge_cut(st.Scores(measured.models, turned))
    assert verdict.outcome is Outcome.UNKNOWN and "cannot be compared" in verdict.reason


def test_floors_enter_no_warning_and_no_fact() -> None:
    floor: Samples = {("fda", "contains"): [0.0] * 50}
    measured = scores({"original": ORIGINAL | floor, "cut": LOST | floor})
    alone = scores({"original": ORIGINAL, "cut": LOST})
    assert cut_warnings(measured, "cut") == cut_warnings(alone, "cut")
    assert judge_cut(measured).facts == judge_cut(alone).facts
    sentences = {x.task: x.sentence for x in task_losses(measured, "cut")}
    few = "50 samples of fda are too few to tell the original from chance"
    assert sentences["fda"] == f"not informative: {few}"


def test_the_chance_of_a_task_of_lm_eval_is_stored_or_said_to_be_unknown() -> None:
    models = {"original": ORIGINAL, "cut": GOOD}
    named = ("piqa", "acc", "share", True, answers(0.51, 100))
    alone = scores(models)
    for chance, informative in ((0.5, False), (0.25, True), (None, True)):
        extra = [st.Score(name, *named, chance=chance) for name in models]
        measured = st.Scores(alone.models, [*alone.scores, *extra], alone.lineage)
        x = metric_loss(measured, "cut", "piqa", "acc")
        assert x.uninformative != informative and x.group == "accuracy"
        unknown = "what guessing scores on piqa is not known; 0 was assumed"
        assert (unknown in judge_cut(measured).warnings) == (chance is None)


def test_a_load_at_chance_is_left_out_of_the_mean() -> None:
    at_chance = ("mqar", "pairs_127")
    original = ORIGINAL | {at_chance: rows(0.005, 0.005)}
    measured = scores({"original": original, "cut": LOST | {at_chance: rows(0.005, seed=3)}})
    alone = metric_loss(scores({"original": ORIGINAL, "cut": LOST}), "cut", "mqar", "accuracy")
    assert metric_loss(measured, "cut", "mqar", "accuracy") == alone
    assert metric_loss(measured, "cut", "mqar", "pairs_127").uninformative


def test_a_mean_names_the_settings_that_it_is_of() -> None:
    """The original is above chance on two of five settings; the mean has only these."""
    some = {4: 0.9, 8: 0.8, 16: 0.05, 32: 0.03, 63: 0.02}
    measured = scores({"original": model(some), "cut": model(0.5)})
    text = averaged_settings_text(measured, "mqar", "accuracy")
    assert text == "mean of 2 of 5 settings: 4 pairs, 8 pairs"
    all_informative = scores({"original": ORIGINAL, "cut": GOOD})
    assert averaged_settings_text(all_informative, "mqar", "accuracy") == "mean of 5 settings"
    none_informative = scores({"original": model(0.02), "cut": GOOD})
    assert averaged_settings_text(none_informative, "mqar", "accuracy") == "mean of 5 settings"
    for task, metric in (("mqar", "pairs_4"), ("text", "perplexity")):
        assert averaged_settings_text(all_informative, task, metric) == ""


def test_one_sample_tells_nothing_from_chance() -> None:
    samples = {("mqar", "pairs_4"): [0.75], ("mqar", "accuracy"): [0.75]}
    (lost,) = task_losses(scores({"original": samples, "cut": samples}), "cut")
    assert lost.uninformative and lost.too_few_samples


def test_a_cut_to_ship_is_told_as_one() -> None:
    """The text of a verdict to ship: its losses, no -0.0, and no advice to keep more channels."""
    result = judged(model(recall=0.89, nats=3.0002, kl=0.01))
    assert result.outcome is Outcome.SHIP
    losses = r"it loses 0\.\d% of perplexity on text \(at most 0\.\d%\) and 1\.0 points of recall"
    assert re.match(losses, result.reason)
    (warning,) = result.warnings
    assert warning.startswith("recall falls by 1.0 points on mqar (95%: ")
    assert warning.endswith("; the limit is 3 points")
    assert not re.search(r"-0\.0\b", " ".join([result.reason, *result.facts]))
    (worse,) = judged(model(recall=0.84, nats=3.0, kl=0.01)).warnings
    assert worse.endswith("keep more channels, or calibrate and recover on text that needs recall")


def test_an_original_that_is_swapped_for_another_cut_does_not_ship() -> None:
    cuts = {"cut": {"source": "of the original", "methods": ["l1"]}}
    models = {"original": LOST, "cut": LOST, **RANDOM}
    verdict = judge_cut(scores(models, original="of the other cut", cuts=cuts), "cut")
    assert verdict.outcome is not Outcome.SHIP and "was not cut from" in verdict.reason
