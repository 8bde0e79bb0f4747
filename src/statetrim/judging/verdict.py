"""The verdict on a cut, from its scores: ship, ship after recovery, do not ship, or unknown.

The worst loss decides: adding tasks, settings or samples cannot average it away.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from math import isfinite
from pathlib import Path
from typing import Any

from ..artifacts.scores import Scores, pair_samples
from ..errors import StatetrimError
from ..maths.paired import Interval, difference_interval
from ..tasks import TASKS
from .losses import (
    Loss,
    headline_score,
    informative_losses,
    is_setting,
    main_metrics,
    metric_loss,
    setting_losses,
    task_losses,
)

RANDOM_METHOD = "rand"  # the method of a random cut, the control


@dataclass(frozen=True)
class Limit:
    """What a group of tasks may lose, in the unit of `Loss.loss`."""

    ship: float  # largest loss to ship, and largest margin of its estimate
    recoverable: float  # largest loss that recovery is known to restore
    setting: float  # largest lower bound of the loss on one setting of a task


LIMITS: Mapping[str, Limit] = {
    "perplexity": Limit(ship=3.0, recoverable=10.0, setting=3.0),
    "recall": Limit(ship=3.0, recoverable=10.0, setting=10.0),
    "accuracy": Limit(ship=2.0, recoverable=5.0, setting=10.0),
}
"""Percent of perplexity, points of recall and accuracy. KL from the original has no limit: its
effects show in the other metrics."""
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


class LimitStatus(StrEnum):
    """How a loss compares with its limit."""

    WITHIN = "within the limit"
    BEYOND = "beyond the limit"
    UNCLEAR = "too few samples to tell"


@dataclass(frozen=True)
class Verdict:
    """Whether to ship one cut model, why, and the figures that decide it."""

    model: str
    outcome: Outcome
    reason: str  # a sentence without its full stop
    facts: Sequence[str]  # losses of the cut and of a random cut, the worst first
    warnings: Sequence[str]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def limit_status(x: Loss) -> LimitStatus | None:
    """Beyond: a significant loss with an estimate above its limit. Within: an estimate and a margin
    of at most the limit. Unclear: anything else. None: it has no limit."""
    loss, limit = x.loss, ship_limit(x)
    if limit is None:
        return None
    if loss.estimate > limit and loss.low > 0:
        return LimitStatus.BEYOND
    if loss.estimate <= limit and loss.margin <= limit:
        return LimitStatus.WITHIN
    return LimitStatus.UNCLEAR


def judge_cut(
    scores: Scores | None,
    model: str | None = None,
    *,
    served: Sequence[str] | None = None,
    doubts: Sequence[str] = (),
    faults: Sequence[str] = (),
) -> Verdict:
    """Judge one model of the scores, by default the first after the original.

    `served` are the engines that serve its shape (None if unknown; without any it does not ship).
    `doubts` are reasons not to trust the scores, such as scores of other weights; any of `faults`,
    those of a `Verification`, means do not ship. If its scores cannot be compared with the
    original's, the outcome is UNKNOWN.
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
        all_losses, by_setting = task_losses(scores, name), setting_losses(scores, name)
    except StatetrimError as error:
        return Verdict(name, Outcome.UNKNOWN, f"its scores cannot be compared: {error}", [], [])
    informative = sorted(informative_losses(all_losses), key=severity, reverse=True)
    facts = [_fact_text(scores, x) for x in informative if _strictest_limit(x)]
    doubts = [*doubts, *source_mismatches(scores, name)]
    recovered = _recorded_origin(scores, name).get("recovered") is True
    outcome, reason = _decide_outcome(
        scores, name, informative, by_setting, recovered, served, doubts
    )
    return Verdict(name, outcome, reason, facts, cut_warnings(scores, name))


def cut_models(scores: Scores) -> list[str]:
    """The models except the original and random cuts; random cuts if there are no others."""
    others, controls = scores.models[1:], random_controls(scores)
    return [name for name in others if name not in controls] or others


def random_controls(scores: Scores) -> list[str]:
    """The random cuts, by the methods that `evaluate` recorded, or else by their directory name."""
    controls = []
    for name in scores.models[1:]:
        methods = _recorded_origin(scores, name).get("methods", [Path(name).name])
        if isinstance(methods, list) and methods and all(x == RANDOM_METHOD for x in methods):
            controls.append(name)
    return controls


def _recorded_origin(scores: Scores, model: str) -> Mapping[str, Any]:
    """What `evaluate` recorded with `read_origin` of a cut; empty if nothing valid."""
    cuts = scores.lineage.get("cuts")
    origin = cuts.get(model) if isinstance(cuts, dict) else None
    return origin if isinstance(origin, dict) else {}


def source_mismatches(scores: Scores, model: str) -> Iterator[str]:
    """A sentence if a cut was compared with another model than the one it was cut from."""
    source = _recorded_origin(scores, model).get("source")
    if source is not None and source != scores.lineage.get("original"):
        yield f"{model} was compared with {scores.baseline}, which it was not cut from"


def cut_warnings(scores: Scores, model: str) -> list[str]:
    """Significant losses of recall, and informative tasks on which a random cut does as well."""
    texts = []
    informative = informative_losses(task_losses(scores, model))
    for x in informative:
        if "recall" in x.groups and x.loss.low > 0:
            advice = "keep more channels, or calibrate and recover on text that needs recall"
            if limit_status(x) is LimitStatus.WITHIN:
                advice = f"the limit is {ship_limit(x):g} points"
            texts.append(
                f"recall falls by {x.loss.estimate:.1f} points on {x.task} (95%: "
                f"{x.loss.low:.1f} to {x.loss.high:.1f}); {advice}"
            )
    for control in random_controls(scores):
        if control == model:
            continue
        for task in dict.fromkeys(x.task for x in informative if x.loss.low > 0):
            advantage = _advantage_over_control(scores, model, control, task)
            if advantage and advantage.estimate <= 0:
                texts.append(
                    f"on {task} the cut is no better than a random one; calibrate on more text, or "
                    f"choose another method"
                )
    return texts


def _decide_outcome(
    scores: Scores,
    model: str,
    informative: Sequence[Loss],
    by_setting: Sequence[Loss],
    recovered: bool,
    served: Sequence[str] | None,
    doubts: Sequence[str],
) -> tuple[Outcome, str]:
    if served is not None and not served:
        return Outcome.STOP, "no known engine serves its shape"
    beyond = [x for x in informative if limit_status(x) is LimitStatus.BEYOND]
    if setting := worst_setting(by_setting):
        beyond.append(setting)
    for x in beyond:
        limit = _strictest_limit(x)
        if limit and x.loss.estimate > limit.recoverable:
            return Outcome.STOP, f"{loss_text(x)}, more than recovery is known to restore"
    if beyond and recovered:
        return Outcome.STOP, f"{loss_text(beyond[0])}, after recovery"
    if beyond:
        return Outcome.RECOVER, f"{loss_text(beyond[0])}, which recovery may restore"
    if doubts:
        return Outcome.UNKNOWN, doubts[0]
    for group in REQUIRED_GROUPS:
        if not any(group in x.groups for x in informative):
            return Outcome.UNKNOWN, _missing_evidence_text(scores, model, group)
    for x in informative:
        if limit_status(x) is LimitStatus.UNCLEAR:
            reason = (
                f"with {x.samples} samples of {x.task} the loss is between {x.loss.low:.1f} and "
                f"{x.loss.high:.1f}{x.unit.suffix} (limit {ship_limit(x):g}), which is too wide to "
                f"tell"
            )
            return Outcome.UNKNOWN, reason
    controls = random_controls(scores)
    if not controls or model in controls:
        return Outcome.UNKNOWN, "no random cut was measured for comparison"
    better = dict.fromkeys(
        x.task
        for control in controls
        for x in informative
        if (advantage := _advantage_over_control(scores, model, control, x.task))
        and advantage.low > 0  # significantly
    )
    if better:
        return Outcome.SHIP, _within_limits_text(informative, list(better))
    reason = "a random cut does as well, so these tasks do not show what the state holds"
    return Outcome.UNKNOWN, reason


def _missing_evidence_text(scores: Scores, model: str, group: str) -> str:
    """Why a group of tasks gives no evidence (not measured, or uninformative), and what helps."""
    uninformative = next((x for x in task_losses(scores, model) if group in x.groups), None)
    if uninformative is None:
        return f"its {group} was not measured: add `{DEFAULT_TASKS[group]}` to --tasks"
    if uninformative.unit.guess == "vocabulary":
        advice = "choose a text that the original can predict"
    else:
        more = "raise --limit, or " if uninformative.too_few_samples else ""
        advice = f"{more}choose a task that the original can do"
    return f"its {group} is unknown: {uninformative.why_uninformative}; {advice}"


def worst_setting(by_setting: Sequence[Loss]) -> Loss | None:
    """Of the informative settings whose lower bound of the loss is beyond its limit, the one with
    the largest ratio of the two; None if there is none."""
    worst, worst_ratio = None, 1.0
    for x in informative_losses(by_setting):
        limit = _strictest_limit(x)
        if limit and x.loss.low / limit.setting > worst_ratio:
            worst, worst_ratio = x, x.loss.low / limit.setting
    return worst


def _strictest_limit(x: Loss) -> Limit | None:
    """The strictest limit of the groups of a loss; None if none of them has one."""
    limits = [LIMITS[group] for group in x.groups if group in LIMITS]
    return min(limits, key=lambda limit: limit.ship, default=None)


def ship_limit(x: Loss) -> float | None:
    """The largest loss to ship, in the unit of the loss; None if it has no limit."""
    limit = _strictest_limit(x)
    return limit.ship if limit else None


def severity(x: Loss) -> float:
    """The ratio of a loss to its limit, above 1 beyond the limit; -1 without a limit."""
    limit = _strictest_limit(x)
    return x.loss.estimate / limit.ship if limit else -1.0


def _advantage_over_control(scores: Scores, model: str, control: str, task: str) -> Interval | None:
    """By how much the model is better than the random cut on a task, by KL from the original if
    it was measured, because it is more sensitive than a score; None if they were not both
    measured on the same samples."""
    metric = "kl" if "kl" in scores.metrics(task) else main_metrics(scores, task)[0]
    try:
        cut_score = headline_score(scores, model, task, metric)
        control_score = headline_score(scores, control, task, metric)
        pairs = pair_samples(control_score, cut_score)
    except StatetrimError:
        return None
    change = difference_interval([pairs])
    return change if cut_score.higher_is_better else -change


def _fact_text(scores: Scores, x: Loss) -> str:
    low, high = round(x.loss.low, 1) + 0.0, round(x.loss.high, 1) + 0.0  # + 0.0 avoids -0.0
    text = (
        f"{x.task} {x.metric} {x.unit.text(x.before)} → {x.unit.text(x.after)} "
        f"(loss {x.unit.loss_text(x.loss.estimate)}, 95%: {low:.1f} to {high:.1f})"
    )
    control = next(iter(random_controls(scores)), x.model)
    if control == x.model:
        return text
    try:
        control_loss = metric_loss(scores, control, x.task, x.metric).loss
    except StatetrimError:  # the random cut was not measured on these samples
        return text
    return f"{text}; a random cut loses {x.unit.loss_text(control_loss.estimate)}"


def loss_text(x: Loss) -> str:
    """A loss and its limit, for people; the loss must have one."""
    limits = _strictest_limit(x)
    assert limits is not None
    limit = limits.setting if is_setting(x.task, x.metric) else limits.ship
    verb, suffix = "falls" if x.higher_is_better else "rises", x.unit.suffix
    size = f"{x.loss.estimate:.1f}{suffix}"
    return f"{x.groups[0]} {verb} by {size} on {metric_label(x)} (limit {limit:g}{suffix})"


def metric_label(x: Loss) -> str:
    """The task, with the metric if it is not the one by which the task is judged."""
    definition = TASKS.get(x.task)
    return x.task if definition and x.metric == definition.metric else f"{x.task}, {x.metric}"


def _within_limits_text(informative: Sequence[Loss], better: Sequence[str]) -> str:
    """The largest loss of each required group, of a cut that ships, and the tasks on which it is
    significantly better than a random cut."""
    parts = []
    for group in REQUIRED_GROUPS:
        worst = max((x for x in informative if group in x.groups), key=lambda x: x.loss.estimate)
        size = worst.unit.loss_text(worst.loss.estimate)
        parts.append(f"{size} of {group} on {worst.task}")
    return (
        f"it loses {' and '.join(parts)}, both within their limits, and is better than a random "
        f"cut on {', '.join(better)}"
    )
