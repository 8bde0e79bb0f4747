"""The verdict on a cut, from its scores: ship, ship after recovery, do not ship, or unknown.

It is a test of non-inferiority: a cut ships if the upper end of the interval of every loss is
within its limit, and if it is better than random cuts of its shape on text or on recall. A setting
of a task has a limit of its own, so adding tasks, settings or samples cannot average a loss away.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite
from typing import NamedTuple

from ..artifacts.scores import Scores
from ..errors import StatetrimError
from .control import (
    MIN_CONTROLS,
    ControlComparison,
    compare_with_controls,
    controls_of,
    random_cuts,
    recorded_origin,
    trained_control_is_as_good,
)
from .limits import (
    LIMITS,
    LimitStatus,
    limit_status,
    limited_losses,
    loss_text,
    metric_label,
    severity,
    ship_limit,
)
from .losses import Loss, known_chance, setting_losses, task_losses

REQUIRED_GROUPS = ("perplexity", "recall")
"""Without an informative task of each group there is not enough evidence."""
DEFAULT_TASKS = {"perplexity": "text", "recall": "mqar"}
"""The task of each required group that needs no dataset."""


class Outcome(StrEnum):
    """The answer of a verdict."""

    SHIP = "ship"
    RECOVER = "ship after recovery"
    STOP = "do not ship"
    UNKNOWN = "not enough evidence"


@dataclass(frozen=True)
class Verdict:
    """Whether to ship one cut model, why, and the figures that decide it."""

    model: str
    outcome: Outcome
    reason: str  # a sentence without its full stop
    facts: Sequence[str]  # losses of the cut and of random cuts, the worst first
    warnings: Sequence[str]
    worst: str = ""  # the group of the loss that decides against it
    as_random: bool = False  # random cuts decide against it, which more samples do not change


def judge_cut(
    scores: Scores | None,
    model: str | None = None,
    *,
    served: Sequence[str] | None = None,
    doubts: Sequence[str] = (),
    faults: Sequence[str] = (),
    earlier: Scores | None = None,
) -> Verdict:
    """Judge one model of the scores, by default the first after the original.

    `served` are the engines that serve its shape (None if unknown; without any it does not ship).
    `doubts` are reasons not to trust the scores, such as scores of other weights; any of `faults`,
    those of a `Verification`, means do not ship. `earlier` are the scores by which its shape was
    chosen, on other samples: the last of their models, which counts if it has the same weights. If
    its scores cannot be compared with the original's, the outcome is UNKNOWN.
    """
    if faults:
        return Verdict(model or "the cut", Outcome.STOP, faults[0], [], list(faults[1:]))
    if scores is None or len(scores.models) < 2:
        name = model or "the cut"
        return Verdict(name, Outcome.UNKNOWN, "its quality was not measured", [], [])
    name = model or cut_models(scores)[0]
    for score in scores.scores:
        if score.model == name and not all(map(isfinite, score.samples)):
            reason = f"its {score.metric} on {score.task} is not a number"
            return Verdict(name, Outcome.STOP, reason, [], [])
    try:
        evidence = _Evidence.of(scores, name)
    except StatetrimError as error:
        return Verdict(name, Outcome.UNKNOWN, f"its scores cannot be compared: {error}", [], [])
    source = recorded_origin(scores, name).get("source")
    if source is not None and source != scores.lineage.get("original"):
        other = f"{name} was compared with {scores.baseline}, which it was not cut from"
        doubts = [*doubts, other]
    same_cut = earlier if earlier and _has_same_weights(scores, name, earlier) else None
    answer = _decide_outcome(evidence, served, doubts, same_cut)
    facts = [_fact_text(evidence, x) for x in evidence.main]
    return Verdict(
        name,
        answer.outcome,
        answer.reason,
        facts,
        cut_warnings(scores, name),
        answer.worst,
        answer.as_random,
    )


def needs_samples(scores: Scores) -> bool:
    """Whether more samples could decide the verdict on a cut: a limit lies within an interval, or
    it is not known whether the original is above chance; not if a loss is beyond its limit."""
    for evidence in _without_loss_beyond_limit(scores):
        statuses = {limit_status(x) for x in evidence.limited}
        few = any(x.too_few_samples for x in task_losses(scores, evidence.model))
        if few or LimitStatus.UNCLEAR in statuses:
            return True
    return False


def shapes_to_compare(scores: Scores) -> set[str | None]:
    """The shapes whose random cuts may decide a verdict: no loss beyond its limit does."""
    cuts = _without_loss_beyond_limit(scores)
    return {recorded_origin(scores, evidence.model).get("shape") for evidence in cuts}


def _without_loss_beyond_limit(scores: Scores) -> Iterator["_Evidence"]:
    for name in cut_models(scores):
        try:
            evidence = _Evidence.of(scores, name)
        except StatetrimError:
            continue
        if all(limit_status(x) is not LimitStatus.BEYOND for x in evidence.limited):
            yield evidence


def cut_models(scores: Scores) -> list[str]:
    """The models except the original and random cuts; random cuts if there are no others."""
    others, controls = scores.models[1:], random_cuts(scores)
    return [name for name in others if name not in controls] or others


def cut_warnings(scores: Scores, model: str) -> list[str]:
    """Significant losses of recall, and tasks whose score of guessing is not known."""
    texts, unknown = list[str](), dict[str, None]()
    for x in task_losses(scores, model):
        if x.uninformative:
            continue
        score = scores.find(scores.baseline, x.task, x.metric)
        if x.unit.guess == "share" and known_chance(score) is None:
            unknown[x.task] = None
        if x.group == "recall" and x.loss.low > 0:
            advice = "keep more channels, or calibrate and recover on text that needs recall"
            if limit_status(x) is LimitStatus.WITHIN:
                advice = f"the limit is {ship_limit(x):g} points"
            texts.append(
                f"recall falls by {x.loss.estimate:.1f} points on {x.task} (95%: "
                f"{x.loss.low:.1f} to {x.loss.high:.1f}); {advice}"
            )
    if unknown:
        texts.append(f"what guessing scores on {', '.join(unknown)} is not known; 0 was assumed")
    return texts


class _Answer(NamedTuple):
    """What a verdict takes over; `worst` is "" if no loss decides against the cut."""

    outcome: Outcome
    reason: str
    worst: str
    as_random: bool = False


@dataclass(frozen=True)
class _Evidence:
    """The informative losses of a cut that have a limit, the worst first."""

    scores: Scores
    model: str
    main: Sequence[Loss]
    settings: Sequence[Loss]

    @staticmethod
    def of(scores: Scores, model: str) -> "_Evidence":
        """Raises StatetrimError if the scores cannot be compared."""
        main = limited_losses(task_losses(scores, model))
        return _Evidence(scores, model, main, limited_losses(setting_losses(scores, model)))

    @property
    def limited(self) -> list[Loss]:
        return [*self.main, *self.settings]

    def worst_setting(self, task: str) -> Loss | None:
        return next((x for x in self.settings if x.task == task), None)

    def worst_of_group(self, group: str) -> Loss | None:
        return next((x for x in self.main if x.group == group), None)


def _has_same_weights(scores: Scores, model: str, earlier: Scores) -> bool:
    """Whether the last model of `earlier` has the weights of `model`, by their digests."""
    digests, others = scores.lineage.get("models"), earlier.lineage.get("models")
    if not isinstance(digests, list) or len(digests) != len(scores.models):
        return False
    return isinstance(others, list) and others[-1:] == [digests[scores.models.index(model)]]


def _decide_outcome(
    evidence: _Evidence,
    served: Sequence[str] | None,
    doubts: Sequence[str],
    earlier: Scores | None,
) -> _Answer:
    """What the evidence says of the cut: the first of the rules that applies."""
    if served is not None and not served:
        return _Answer(Outcome.STOP, "no known engine serves its shape", "")
    scores, model = evidence.scores, evidence.model
    beyond = [x for x in evidence.limited if limit_status(x) is LimitStatus.BEYOND]
    if beyond:
        return _beyond_limits(evidence, beyond)
    if doubts:
        return _Answer(Outcome.UNKNOWN, doubts[0], "")
    for group in REQUIRED_GROUPS:
        if evidence.worst_of_group(group) is None:
            return _Answer(Outcome.UNKNOWN, _missing_evidence_text(scores, model, group), group)
    for x in evidence.limited:
        if limit_status(x) is LimitStatus.UNCLEAR:
            reason = (
                f"{x.samples} samples of {metric_label(x)} leave open whether it keeps its limit: "
                f"the loss is between {x.loss.low:.1f} and {x.loss.high:.1f}{x.unit.suffix} (limit "
                f"{ship_limit(x):g})"
            )
            return _Answer(Outcome.UNKNOWN, reason, x.group)
    shown = _Evidence.of(earlier, earlier.models[-1]) if earlier else None
    for x in shown.limited if shown else ():
        if limit_status(x) is LimitStatus.BEYOND:
            reason = f"on the samples that chose its shape {loss_text(x)}, and on others not"
            return _Answer(Outcome.UNKNOWN, reason, x.group)
    return _verdict_against_controls(evidence, shown)


def _beyond_limits(evidence: _Evidence, beyond: Sequence[Loss]) -> _Answer:
    """The verdict on a cut of which these losses are beyond their limits."""
    worst = max(beyond, key=severity)
    text, group = loss_text(worst), worst.group
    setting = evidence.worst_setting(worst.task)
    if setting is not None and setting is not worst:
        text += (
            f", and by {setting.unit.loss_text(setting.loss.estimate)} at {setting.setting_name}"
        )
    if recorded_origin(evidence.scores, evidence.model).get("recovered") is True:
        return _Answer(Outcome.STOP, f"{text}, after recovery", group)
    for x in beyond:
        if x.loss.estimate > LIMITS[x.group].recoverable:
            most = f"{LIMITS[x.group].recoverable:g}{x.unit.suffix}"
            return _Answer(
                Outcome.STOP, f"{text}; recovery restored up to {most} in measurements", group
            )
    return _Answer(Outcome.RECOVER, f"{text}, which recovery may restore", group)


def _verdict_against_controls(evidence: _Evidence, shown: _Evidence | None) -> _Answer:
    """The verdict on a cut whose losses are all within their limits."""
    scores, model = evidence.scores, evidence.model
    count = len(controls_of(scores, model))
    comparisons = dict[str, ControlComparison]()
    for group in REQUIRED_GROUPS:
        for x in evidence.main:
            compared = compare_with_controls(scores, x, ship_limit(x) or 0.0)
            if x.group == group and compared is not None:
                comparisons.setdefault(group, compared)
    if len(comparisons) < len(REQUIRED_GROUPS):
        reason = f"{count or 'no'} random cuts of its shape were measured, and {MIN_CONTROLS} are "
        return _Answer(Outcome.UNKNOWN, f"{reason}needed for comparison", "")
    better = [x.task for x in comparisons.values() if x.is_better]
    if not better and not any(x.shows_state for x in comparisons.values()):
        reason = (
            "random cuts keep the limits too, and are as good: these tasks do not show the state"
        )
        return _Answer(Outcome.UNKNOWN, reason, "", as_random=True)
    for group, compared in comparisons.items():
        # Where it is better elsewhere, some random cuts may be as good: its own loss is measured.
        enough = compared.is_better_than_mean if better else compared.is_better
        if compared.shows_state and not enough:
            reason = f"on {compared.task} it is within the spread of {count} random cuts"
            return _Answer(Outcome.UNKNOWN, reason, group, as_random=True)
    text = _within_limits_text(evidence, comparisons, count)
    if recorded_origin(scores, model).get("recovered") is True:
        as_good = trained_control_is_as_good(scores, model, better)
        if as_good:
            return _Answer(Outcome.UNKNOWN, "a random cut with the same training does as well", "")
        if as_good is None:
            text += "; it was trained after the cut, and how much text it learned is not known"
    if shown and shown.main:
        losses = [x.unit.loss_text(x.loss.estimate) + f" on {x.task}" for x in shown.main]
        text += f"; the samples that chose its shape show {' and '.join(losses)}"
    return _Answer(Outcome.SHIP, text, "")


def _missing_evidence_text(scores: Scores, model: str, group: str) -> str:
    """Why a group of tasks gives no evidence (not measured, or uninformative), and what helps."""
    uninformative = next((x for x in task_losses(scores, model) if x.group == group), None)
    if uninformative is None:
        return f"its {group} was not measured: add `{DEFAULT_TASKS[group]}` to --tasks"
    if uninformative.unit.guess == "vocabulary":
        advice = "choose a text that the original can predict"
    else:
        more = "raise --limit, or " if uninformative.too_few_samples else ""
        advice = f"{more}choose a task that the original can do"
    return f"its {group} is unknown: {uninformative.why_uninformative}; {advice}"


def _fact_text(evidence: _Evidence, x: Loss) -> str:
    low, high = round(x.loss.low, 1) + 0.0, round(x.loss.high, 1) + 0.0  # + 0.0 avoids -0.0
    text = (
        f"{x.task} {x.metric} {x.unit.text(x.before)} → {x.unit.text(x.after)} "
        f"(loss {x.unit.loss_text(x.loss.estimate)}, 95%: {low:.1f} to {high:.1f})"
    )
    setting = evidence.worst_setting(x.task)
    if setting is not None:
        text += f"; at {setting.setting_name} {setting.unit.loss_text(setting.loss.estimate)}"
    compared = compare_with_controls(evidence.scores, x, ship_limit(x) or 0.0)
    if compared is None:
        return text
    least, most = (x.unit.loss_text(bound(compared.losses)) for bound in (min, max))
    return f"{text}; {len(compared.losses)} random cuts lose {least} to {most}"


def _within_limits_text(
    evidence: _Evidence, comparisons: Mapping[str, ControlComparison], count: int
) -> str:
    """The largest loss of each required group of a cut that ships, the worst setting, and on which
    tasks it is better than random cuts; of the others, what these lose."""
    parts, better, other = list[str](), list[str](), ""
    for group, compared in comparisons.items():
        worst = evidence.worst_of_group(group)
        assert worst is not None
        bounds = f"at most {worst.unit.loss_text(worst.loss.high)}"
        setting = evidence.worst_setting(worst.task)
        if setting is not None:
            bounds += f"; {setting.unit.loss_text(setting.loss.estimate)} at {setting.setting_name}"
        size = worst.unit.loss_text(worst.loss.estimate)
        parts.append(f"{size} of {group} on {worst.task} ({bounds})")
        lost = worst.unit.loss_text(max(0.0, compared.mean_loss))
        if compared.is_better:
            better.append(compared.task)
        elif compared.shows_state:
            other += f"; on {compared.task} it is within their spread, a random cut loses {lost}"
        else:
            other += f"; {group} does not depend on the state here: a random cut loses {lost}"
    return (
        f"it loses {' and '.join(parts)}, within the limits, and is better than {count} random "
        f"cuts on {' and '.join(better)}{other}"
    )
