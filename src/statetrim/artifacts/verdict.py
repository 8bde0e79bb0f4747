"""Is a cut fit to ship? The rule, as data, for the report, the card, the terminal and exit codes.

A loss counts where it is worst: no task, no setting and no sample size can dilute another's.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite
from pathlib import Path
from typing import Any

from ..errors import StatetrimError
from ..maths.formatting import score_text
from ..maths.paired import Interval, difference_interval
from ..tasks import TASKS
from .losses import (
    CONFIDENCE_LEVEL,
    UNIT_SUFFIX,
    Loss,
    headline_score,
    main_metrics,
    setting_losses,
    task_losses,
)
from .scores import Scores, pair_samples

RANDOM_METHOD = "rand"


@dataclass(frozen=True)
class Limit:
    """What a group of tasks may lose, in the unit in which its losses are told."""

    ship: float  # at most this, measured to within as much
    recoverable: float  # what training after the cut has been seen to bring back at most
    setting: float  # one setting of a task, beyond doubt


LIMITS: Mapping[str, Limit] = {
    "perplexity": Limit(ship=3.0, recoverable=10.0, setting=3.0),
    "recall": Limit(ship=3.0, recoverable=10.0, setting=10.0),
    "accuracy": Limit(ship=2.0, recoverable=5.0, setting=10.0),
}
"""Percent of perplexity, points of recall and accuracy. KL from the original has no limit of its
own: what it costs shows in the others."""
REQUIRED_GROUPS = ("perplexity", "recall")
"""Without a task of each that says something there is not enough evidence."""
DEFAULT_TASKS = {"perplexity": "text", "recall": "mqar"}
"""The task of each that needs no data of its own."""


class Outcome(StrEnum):
    SHIP = "ship"
    RECOVER = "ship after recovery"
    STOP = "do not ship"
    UNKNOWN = "not enough evidence"


class LimitStatus(StrEnum):
    WITHIN = "within the limit"
    BEYOND = "beyond the limit"
    UNCLEAR = "too few samples to tell"


@dataclass(frozen=True)
class Verdict:
    """Whether to ship one cut model, why, and the figures that decide it."""

    model: str
    outcome: Outcome
    reason: str  # a sentence without its full stop
    facts: Sequence[str]  # quality, with the random cut's, the worst first
    warnings: Sequence[str]

    def as_json(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "outcome": str(self.outcome),
            "reason": self.reason,
            "facts": list(self.facts),
            "warnings": list(self.warnings),
        }


def compare_with_limit(loss: Interval, limit: float) -> LimitStatus:
    """Within: at most the limit, measured to within as much. Beyond: more, and a loss for sure."""
    if loss.estimate > limit and loss.low > 0:
        return LimitStatus.BEYOND
    if loss.estimate <= limit and loss.margin <= limit:
        return LimitStatus.WITHIN
    return LimitStatus.UNCLEAR


def judge_cut(
    scores: Scores | None,
    model: str | None = None,
    *,
    recovered: bool = False,
    served: Sequence[str] | None = None,
    doubts: Sequence[str] = (),
    faults: Sequence[str] = (),
) -> Verdict:
    """Judge one model of the scores, by default the first after the original.

    `served` are the engines that take its shape (None: nothing is known of any); `doubts` are
    reasons not to trust the scores, such as that they are of other weights; `faults` were found
    where it ran in an engine (`Verification`).
    """
    if faults:
        return Verdict(model or "the cut", Outcome.STOP, faults[0], [], list(faults[1:]))
    if scores is None or len(scores.models) < 2:
        name = model or "the cut"
        return Verdict(name, Outcome.UNKNOWN, "its quality was not measured", [], [])
    name = model or cut_models(scores)[0]
    own_scores = [score for score in scores.scores if score.model == name]
    not_finite = [x for x in own_scores if not all(map(isfinite, x.samples))]
    if not_finite:
        reason = f"its {not_finite[0].metric} on {not_finite[0].task} is not a number"
        return Verdict(name, Outcome.STOP, reason, [], [])
    try:
        all_losses, by_setting = task_losses(scores, name), setting_losses(scores, name)
    except StatetrimError as error:
        return Verdict(name, Outcome.UNKNOWN, f"its scores cannot be compared: {error}", [], [])
    informative = sorted((x for x in all_losses if not x.uninformative), key=severity, reverse=True)
    facts = [_fact_text(scores, x) for x in informative if _strictest_limit(x)]
    doubts = [*doubts, *source_mismatches(scores, name)]
    recovered = recovered or _recorded_origin(scores, name).get("recovered") is True
    outcome, reason = _decide_outcome(
        scores, name, informative, by_setting, recovered, served, doubts
    )
    return Verdict(name, outcome, reason, facts, cut_warnings(scores, name))


def judge_cuts(scores: Scores, **options: Any) -> list[Verdict]:
    """Of every cut model that is no control."""
    return [judge_cut(scores, model, **options) for model in cut_models(scores)]


def cut_models(scores: Scores) -> list[str]:
    """All but the original and the random cuts; the random ones where there is nothing else."""
    others = scores.models[1:]
    return [name for name in others if name not in random_controls(scores)] or others


def random_controls(scores: Scores) -> list[str]:
    """The cuts at random, by what evaluate recorded of them or by their name."""
    controls = []
    for name in scores.models[1:]:
        methods = _recorded_origin(scores, name).get("methods", [Path(name).name])
        if (
            isinstance(methods, list)
            and methods
            and all(method == RANDOM_METHOD for method in methods)
        ):
            controls.append(name)
    return controls


def _recorded_origin(scores: Scores, model: str) -> Mapping[str, Any]:
    """What evaluate recorded of how the model came about."""
    cuts = scores.lineage.get("cuts")
    origin = cuts.get(model) if isinstance(cuts, dict) else None
    return origin if isinstance(origin, dict) else {}


def source_mismatches(scores: Scores, model: str) -> Iterator[str]:
    """A cut that was compared with another model than the one it was cut from."""
    source = _recorded_origin(scores, model).get("source")
    if source is not None and source != scores.lineage.get("original"):
        yield f"{model} was compared with {scores.baseline}, which it was not cut from"


def cut_warnings(scores: Scores, model: str) -> list[str]:
    """What a user should know before serving the cut model; floors warn of nothing."""
    texts = []
    for x in task_losses(scores, model):
        if "recall" in x.groups and x.unit == "share" and not x.uninformative and x.loss.low > 0:
            limit = ship_limit(x) or 0.0
            advice = "keep more channels, or calibrate and recover on text that needs recall"
            if compare_with_limit(x.loss, limit) is LimitStatus.WITHIN:
                advice = f"the limit is {limit:g} points"
            texts.append(
                f"recall falls by {x.loss.estimate:.1f} points on {x.task} (95%: "
                f"{x.loss.low:.1f} to {x.loss.high:.1f}); {advice}"
            )
    texts += [
        f"on {task} the cut is no better than a random one; calibrate on more text, or choose "
        f"another method"
        for control in random_controls(scores)
        for task in scores.tasks
        if control != model and _is_informative(scores, model, task)
        if _advantage_over_control(scores, model, control, task).estimate <= 0
    ]
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
    """The rule, in the order in which it is read."""
    if served is not None and not served:
        return Outcome.STOP, "no known engine serves its shape"
    beyond = list(_iter_beyond_limit(informative, by_setting))
    unrecoverable = [x for x, limit in beyond if x.loss.estimate > limit.recoverable]
    if unrecoverable:
        return (
            Outcome.STOP,
            f"{loss_text(unrecoverable[0])}, more than recovery is known to restore",
        )
    if beyond and recovered:
        return Outcome.STOP, f"{loss_text(beyond[0][0])}, after recovery"
    if beyond:
        return Outcome.RECOVER, f"{loss_text(beyond[0][0])}, which recovery may restore"
    if doubts:
        return Outcome.UNKNOWN, doubts[0]
    for group in REQUIRED_GROUPS:
        if not any(group in x.groups for x in informative):
            return Outcome.UNKNOWN, _missing_evidence_text(scores, model, group)
    unclear = [x for x in informative if (limit := _strictest_limit(x)) and _is_unclear(x, limit)]
    if unclear:
        return Outcome.UNKNOWN, _too_few_text(unclear[0])
    if not random_controls(scores) or model in random_controls(scores):
        return Outcome.UNKNOWN, "no random cut was measured for comparison"
    if not any(
        _advantage_over_control(scores, model, control, x.task).low > 0
        for control in random_controls(scores)
        for x in informative
    ):
        reason = "a random cut does as well, so these tasks do not show what the state holds"
        return Outcome.UNKNOWN, reason
    return Outcome.SHIP, _within_limits_text(informative)


def _missing_evidence_text(scores: Scores, model: str, group: str) -> str:
    """Not measured, or measured where the original itself only guesses; and what would help."""
    uninformative = next((x for x in task_losses(scores, model) if group in x.groups), None)
    if uninformative is None:
        return f"its {group} was not measured: add `{DEFAULT_TASKS[group]}` to --tasks"
    if uninformative.unit == "perplexity":
        advice = "choose a text that the original can predict"
    else:
        more = "raise --limit, or " if uninformative.too_few_samples else ""
        advice = f"{more}choose a task that the original can do"
    return f"its {group} is unknown: {uninformative.why_uninformative}; {advice}"


def _iter_beyond_limit(
    informative: Sequence[Loss], by_setting: Sequence[Loss]
) -> Iterator[tuple[Loss, Limit]]:
    for x in informative:
        limit = _strictest_limit(x)
        if limit and compare_with_limit(x.loss, limit.ship) is LimitStatus.BEYOND:
            yield x, limit
    setting = worst_setting(by_setting)
    if setting and (limit := _strictest_limit(setting)):
        yield setting, limit


def worst_setting(by_setting: Sequence[Loss]) -> Loss | None:
    """The setting that lost most of those beyond their limit without doubt; None without any."""
    beyond = [
        x
        for x in by_setting
        if (limit := _strictest_limit(x)) and not x.uninformative and x.loss.low > limit.setting
    ]
    return max(beyond, key=lambda x: x.loss.low, default=None)


def _strictest_limit(x: Loss) -> Limit | None:
    """The strictest of the limits of its groups."""
    limits = [LIMITS[group] for group in x.groups if group in LIMITS]
    return min(limits, key=lambda limit: limit.ship, default=None)


def ship_limit(x: Loss) -> float | None:
    """What the task may lose, in the unit of its loss."""
    limit = _strictest_limit(x)
    return limit.ship if limit else None


def _is_unclear(x: Loss, limit: Limit) -> bool:
    return compare_with_limit(x.loss, limit.ship) is LimitStatus.UNCLEAR


def severity(x: Loss) -> float:
    """The loss over what may be lost; above 1 it is beyond the limit."""
    limit = _strictest_limit(x)
    return x.loss.estimate / limit.ship if limit else -1.0


def _is_informative(scores: Scores, model: str, task: str) -> bool:
    return any(not x.uninformative for x in task_losses(scores, model) if x.task == task)


def _advantage_over_control(scores: Scores, model: str, control: str, task: str) -> Interval:
    """By how much the model beats the random cut; by KL from the original where the task has it,
    which sees more than a score does."""
    metric = "kl" if "kl" in scores.metrics(task) else main_metrics(scores, task)[0]
    cut_score, control_score = (
        headline_score(scores, name, task, metric) for name in (model, control)
    )
    change = difference_interval([pair_samples(control_score, cut_score)], level=CONFIDENCE_LEVEL)
    return change if cut_score.higher_is_better else -change


def _fact_text(scores: Scores, x: Loss) -> str:
    """Before and after with the interval, and what a random cut loses."""
    shown = f"{score_text(x.before, x.unit)} → {score_text(x.after, x.unit)}"
    text = f"{x.task} {x.metric} {shown} ({_interval_text(x)})"
    for control in random_controls(scores)[:1]:
        if control != x.model:
            control_loss = next(y for y in task_losses(scores, control) if is_same_metric(x, y))
            text += f"; a random cut loses {_loss_size_text(control_loss.loss.estimate, x.unit)}"
    return text


def is_same_metric(x: Loss, y: Loss) -> bool:
    return (x.task, x.metric) == (y.task, y.metric)


def _interval_text(x: Loss) -> str:
    low, high = (round(bound, 1) + 0.0 for bound in (x.loss.low, x.loss.high))  # no -0.0
    return f"loss {_loss_size_text(x.loss.estimate, x.unit)}, 95%: {low:.1f} to {high:.1f}"


def _loss_size_text(loss: float, unit: str) -> str:
    """A loss with its unit; a gain is negative."""
    digits = 4 if unit == "nats" else 1
    return f"{round(loss, digits) + 0.0:,.{digits}f}{UNIT_SUFFIX[unit]}"


def loss_text(x: Loss) -> str:
    """A loss and its limit, in words."""
    limit = ship_limit(x)
    assert limit is not None
    name = "perplexity" if x.unit == "perplexity" else x.groups[0]
    verb = "rises" if x.unit == "perplexity" else "falls"
    size = f"{x.loss.estimate:.1f}{UNIT_SUFFIX[x.unit]}"
    return f"{name} {verb} by {size} on {metric_label(x)} (limit {limit:g}{UNIT_SUFFIX[x.unit]})"


def metric_label(x: Loss) -> str:
    """The task, and the metric where it is not what the task is judged by."""
    definition = TASKS.get(x.task)
    return x.task if definition and x.metric == definition.metric else f"{x.task}, {x.metric}"


def _too_few_text(x: Loss) -> str:
    return (
        f"with {x.samples} samples of {x.task} the loss is between {x.loss.low:.1f} and "
        f"{x.loss.high:.1f}{UNIT_SUFFIX[x.unit]} (limit {ship_limit(x):g}), which is too wide to tell"
    )


def _within_limits_text(informative: Sequence[Loss]) -> str:
    parts = []
    for group in REQUIRED_GROUPS:
        worst = max((x for x in informative if group in x.groups), key=lambda x: x.loss.estimate)
        size = _loss_size_text(worst.loss.estimate, worst.unit)
        parts.append(f"{size} of {group} on {worst.task}")
    return f"it loses {' and '.join(parts)}, both within their limits and better than a random cut"
