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
from .losses import LEVEL, SUFFIX, Loss, headline, losses, main_metrics, setting_losses
from .scores import Scores, paired

CONTROL = "rand"


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
NEEDED = ("perplexity", "recall")
"""Without a task of each that says something there is not enough evidence."""
MEASURED_BY = {"perplexity": "text", "recall": "mqar"}
"""The task of each that needs no data of its own."""


class Outcome(StrEnum):
    SHIP = "ship"
    RECOVER = "ship after recovery"
    STOP = "do not ship"
    UNKNOWN = "not enough evidence"


class Standing(StrEnum):
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


def standing(loss: Interval, limit: float) -> Standing:
    """Within: at most the limit, measured to within as much. Beyond: more, and a loss for sure."""
    if loss.estimate > limit and loss.low > 0:
        return Standing.BEYOND
    if loss.estimate <= limit and loss.margin <= limit:
        return Standing.WITHIN
    return Standing.UNCLEAR


def verdict(
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
    own = [score for score in scores.scores if score.model == name]
    nonsense = [x for x in own if not all(map(isfinite, x.samples))]
    if nonsense:
        reason = f"its {nonsense[0].metric} on {nonsense[0].task} is not a number"
        return Verdict(name, Outcome.STOP, reason, [], [])
    try:
        found, single = losses(scores, name), setting_losses(scores, name)
    except StatetrimError as error:
        return Verdict(name, Outcome.UNKNOWN, f"its scores cannot be compared: {error}", [], [])
    told = sorted((x for x in found if not x.floor), key=severity, reverse=True)
    facts = [_fact(scores, x) for x in told if _limit(x)]
    doubts = [*doubts, *mismatches(scores, name)]
    recovered = recovered or _origin(scores, name).get("recovered") is True
    outcome, reason = _decide(scores, name, told, single, recovered, served, doubts)
    return Verdict(name, outcome, reason, facts, warnings(scores, name))


def verdicts(scores: Scores, **options: Any) -> list[Verdict]:
    """Of every cut model that is no control."""
    return [verdict(scores, model, **options) for model in cut_models(scores)]


def cut_models(scores: Scores) -> list[str]:
    """All but the original and the random cuts; the random ones where there is nothing else."""
    others = scores.models[1:]
    return [name for name in others if name not in controls(scores)] or others


def controls(scores: Scores) -> list[str]:
    """The cuts at random, by what evaluate recorded of them or by their name."""
    found = []
    for name in scores.models[1:]:
        methods = _origin(scores, name).get("methods", [Path(name).name])
        if isinstance(methods, list) and methods and all(one == CONTROL for one in methods):
            found.append(name)
    return found


def _origin(scores: Scores, model: str) -> Mapping[str, Any]:
    """What evaluate recorded of how the model came about."""
    cuts = scores.lineage.get("cuts")
    found = cuts.get(model) if isinstance(cuts, dict) else None
    return found if isinstance(found, dict) else {}


def mismatches(scores: Scores, model: str) -> Iterator[str]:
    """A cut that was compared with another model than the one it was cut from."""
    source = _origin(scores, model).get("source")
    if source is not None and source != scores.lineage.get("original"):
        yield f"{model} was compared with {scores.baseline}, which it was not cut from"


def warnings(scores: Scores, model: str) -> list[str]:
    """What a user should know before serving the cut model; floors warn of nothing."""
    found = []
    for x in losses(scores, model):
        if "recall" in x.groups and x.unit == "share" and not x.floor and x.loss.low > 0:
            limit = limit_of(x) or 0.0
            advice = "keep more channels, or calibrate and recover on text that needs recall"
            if standing(x.loss, limit) is Standing.WITHIN:
                advice = f"the limit is {limit:g} points"
            found.append(
                f"recall falls by {x.loss.estimate:.1f} points on {x.task} (95%: "
                f"{x.loss.low:.1f} to {x.loss.high:.1f}); {advice}"
            )
    found += [
        f"on {task} the cut is no better than a random one; calibrate on more text, or choose "
        f"another method"
        for control in controls(scores)
        for task in scores.tasks
        if control != model and _informative(scores, model, task)
        if _advantage(scores, model, control, task).estimate <= 0
    ]
    return found


def _decide(
    scores: Scores,
    model: str,
    told: Sequence[Loss],
    single: Sequence[Loss],
    recovered: bool,
    served: Sequence[str] | None,
    doubts: Sequence[str],
) -> tuple[Outcome, str]:
    """The rule, in the order in which it is read."""
    if served is not None and not served:
        return Outcome.STOP, "no known engine serves its shape"
    beyond = list(_beyond(told, single))
    hopeless = [x for x, limit in beyond if x.loss.estimate > limit.recoverable]
    if hopeless:
        return Outcome.STOP, f"{lost(hopeless[0])}, more than recovery is known to restore"
    if beyond and recovered:
        return Outcome.STOP, f"{lost(beyond[0][0])}, after recovery"
    if beyond:
        return Outcome.RECOVER, f"{lost(beyond[0][0])}, which recovery may restore"
    if doubts:
        return Outcome.UNKNOWN, doubts[0]
    for group in NEEDED:
        if not any(group in x.groups for x in told):
            return Outcome.UNKNOWN, _nothing_told(scores, model, group)
    unclear = [x for x in told if (limit := _limit(x)) and _unclear(x, limit)]
    if unclear:
        return Outcome.UNKNOWN, _too_few(unclear[0])
    if not controls(scores) or model in controls(scores):
        return Outcome.UNKNOWN, "no random cut was measured for comparison"
    if not any(
        _advantage(scores, model, control, x.task).low > 0
        for control in controls(scores)
        for x in told
    ):
        reason = "a random cut does as well, so these tasks do not show what the state holds"
        return Outcome.UNKNOWN, reason
    return Outcome.SHIP, _kept(told)


def _nothing_told(scores: Scores, model: str, group: str) -> str:
    """Not measured, or measured where the original itself only guesses; and what would help."""
    guessed = next((x for x in losses(scores, model) if group in x.groups), None)
    if guessed is None:
        return f"its {group} was not measured: add `{MEASURED_BY[group]}` to --tasks"
    if guessed.unit == "perplexity":
        advice = "choose a text that the original can predict"
    else:
        more = "raise --limit, or " if guessed.few else ""
        advice = f"{more}choose a task that the original can do"
    return f"its {group} is unknown: {guessed.guessed}; {advice}"


def _beyond(told: Sequence[Loss], single: Sequence[Loss]) -> Iterator[tuple[Loss, Limit]]:
    for x in told:
        limit = _limit(x)
        if limit and standing(x.loss, limit.ship) is Standing.BEYOND:
            yield x, limit
    setting = worst_setting(single)
    if setting and (limit := _limit(setting)):
        yield setting, limit


def worst_setting(single: Sequence[Loss]) -> Loss | None:
    """The setting that lost most of those beyond their limit without doubt; None without any."""
    found = [
        x for x in single if (limit := _limit(x)) and not x.floor and x.loss.low > limit.setting
    ]
    return max(found, key=lambda x: x.loss.low, default=None)


def _limit(x: Loss) -> Limit | None:
    """The strictest of the limits of its groups."""
    found = [LIMITS[group] for group in x.groups if group in LIMITS]
    return min(found, key=lambda limit: limit.ship, default=None)


def limit_of(x: Loss) -> float | None:
    """What the task may lose, in the unit of its loss."""
    limit = _limit(x)
    return limit.ship if limit else None


def _unclear(x: Loss, limit: Limit) -> bool:
    return standing(x.loss, limit.ship) is Standing.UNCLEAR


def severity(x: Loss) -> float:
    """The loss over what may be lost; above 1 it is beyond the limit."""
    limit = _limit(x)
    return x.loss.estimate / limit.ship if limit else -1.0


def _informative(scores: Scores, model: str, task: str) -> bool:
    return any(not x.floor for x in losses(scores, model) if x.task == task)


def _advantage(scores: Scores, model: str, control: str, task: str) -> Interval:
    """By how much the model beats the random cut; by KL from the original where the task has it,
    which sees more than a score does."""
    metric = "kl" if "kl" in scores.metrics(task) else main_metrics(scores, task)[0]
    ours, theirs = (headline(scores, name, task, metric) for name in (model, control))
    change = difference_interval([paired(theirs, ours)], level=LEVEL)
    return change if ours.higher_is_better else -change


def _fact(scores: Scores, x: Loss) -> str:
    """Before and after with the interval, and what a random cut loses."""
    shown = f"{score_text(x.before, x.unit)} → {score_text(x.after, x.unit)}"
    text = f"{x.task} {x.metric} {shown} ({_interval(x)})"
    for control in controls(scores)[:1]:
        if control != x.model:
            by_chance = next(y for y in losses(scores, control) if same_figure(x, y))
            text += f"; a random cut loses {_size(by_chance.loss.estimate, x.unit)}"
    return text


def same_figure(x: Loss, y: Loss) -> bool:
    return (x.task, x.metric) == (y.task, y.metric)


def _interval(x: Loss) -> str:
    low, high = (round(end, 1) + 0.0 for end in (x.loss.low, x.loss.high))  # no -0.0
    return f"loss {_size(x.loss.estimate, x.unit)}, 95%: {low:.1f} to {high:.1f}"


def _size(loss: float, unit: str) -> str:
    """A loss with its unit; a gain is negative."""
    digits = 4 if unit == "nats" else 1
    return f"{round(loss, digits) + 0.0:,.{digits}f}{SUFFIX[unit]}"


def lost(x: Loss) -> str:
    """A loss and its limit, in words."""
    limit = limit_of(x)
    assert limit is not None
    name = "perplexity" if x.unit == "perplexity" else x.groups[0]
    verb = "rises" if x.unit == "perplexity" else "falls"
    size = f"{x.loss.estimate:.1f}{SUFFIX[x.unit]}"
    return f"{name} {verb} by {size} on {figure(x)} (limit {limit:g}{SUFFIX[x.unit]})"


def figure(x: Loss) -> str:
    """The task, and the metric where it is not what the task is judged by."""
    known = TASKS.get(x.task)
    return x.task if known and x.metric == known.metric else f"{x.task}, {x.metric}"


def _too_few(x: Loss) -> str:
    return (
        f"with {x.samples} samples of {x.task} the loss is between {x.loss.low:.1f} and "
        f"{x.loss.high:.1f}{SUFFIX[x.unit]} (limit {limit_of(x):g}), which is too wide to tell"
    )


def _kept(told: Sequence[Loss]) -> str:
    parts = []
    for group in NEEDED:
        worst = max((x for x in told if group in x.groups), key=lambda x: x.loss.estimate)
        size = _size(worst.loss.estimate, worst.unit)
        parts.append(f"{size} of {group} on {worst.task}")
    return f"it loses {' and '.join(parts)}, both within their limits and better than a random cut"
