"""Scores -> what was lost: each task against the original, on the same samples.

A loss is positive where the cut is worse. A task on which the original is not shown to be above
chance says nothing of a cut: there is nothing to lose. It is marked as a floor, and enters no mean,
no rule and no verdict.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import expm1, isfinite

from ..errors import StatetrimError
from ..maths.formatting import score_text
from ..maths.paired import Interval, Pairs, above_chance, difference_interval, mcnemar, unseen
from ..maths.table import Table
from ..tasks import TASKS
from .scores import Score, Scores, Unit, paired

LEVEL = 0.95
HEADROOM = 0.05
"""How far above chance the original must be, beyond doubt, to have something to lose."""
SUFFIX = {"perplexity": "%", "share": " points", "nats": " nats"}
_GROUPS: dict[str, tuple[str, ...]] = {
    "perplexity": ("perplexity",),
    "share": ("recall", "accuracy"),
    "nats": ("agreement",),
}
"""Groups of tasks by unit. A task that nobody knows counts as all of them: a loss does not hide
below a new name."""


@dataclass(frozen=True)
class Loss:
    """How much worse a model is than the original on one metric; a gain is a negative loss.

    In percent of the original for perplexities, in percentage points for shares, in nats for KL.
    """

    model: str
    task: str
    metric: str
    unit: Unit
    before: float
    after: float
    samples: int
    loss: Interval
    p: float | None  # McNemar's mid-p, for right and wrong answers
    floor: bool = False  # the original is not shown to be above chance
    few: bool = False  # and more samples could show it

    @property
    def groups(self) -> tuple[str, ...]:
        """What rules may call it besides its name."""
        known, possible = TASKS.get(self.task), _GROUPS[self.unit]
        return (known.group,) if known and known.group in possible else possible

    @property
    def sentence(self) -> str:
        if self.floor and self.loss.high >= 0.0:
            return f"not informative: {self.guessed}"
        return _sentence(self.loss, self.unit)

    @property
    def guessed(self) -> str:
        """Why a floor says nothing, as far as it was measured."""
        samples = f"{self.samples} samples of {self.task}"
        if self.few:
            return f"{samples} are too few to tell the original from chance"
        if self.unit == "perplexity":
            return f"the original predicts {samples} no better than chance"
        return f"the original is less than {100 * HEADROOM:g} points above chance on {samples}"


def _sentence(loss: Interval, unit: Unit) -> str:
    suffix, digits = SUFFIX[unit], 4 if unit == "nats" else 2
    if loss.low <= 0.0 <= loss.high:
        return f"no loss within {abs(loss.high):.{digits}f}{suffix}"
    kind = "loss" if loss.low > 0 else "gain"
    return f"{kind} of {abs(loss.estimate):.{digits}f} ± {loss.margin:.{digits}f}{suffix}"


def losses(scores: Scores, model: str) -> list[Loss]:
    """What every task is judged by, for one model."""
    return [
        loss_of(scores, model, task, metric)
        for task in scores.tasks
        for metric in main_metrics(scores, task)
    ]


def setting_losses(scores: Scores, model: str) -> list[Loss]:
    """The settings that a task's figure is the mean of, each by itself."""
    return [
        loss_of(scores, model, task, metric)
        for task in scores.tasks
        for metric in settings(scores, task)
    ]


def main_metrics(scores: Scores, task: str) -> list[str]:
    """What the task is judged by; a task that nobody knows is judged by all it has."""
    metrics = scores.metrics(task)
    known = TASKS.get(task)
    return [known.metric] if known and known.metric in metrics else metrics


def settings(scores: Scores, task: str) -> list[str]:
    """The metrics of the original that the task's figure is the mean of; most tasks have none."""
    known = TASKS.get(task)
    if known is None or not known.settings:
        return []
    return [metric for metric in scores.metrics(task) if metric.startswith(known.settings)]


def headline(scores: Scores, model: str, task: str, metric: str) -> Score:
    """The score a task is judged by: where it is a mean of settings, of all those on which the
    original is above chance, sample by sample."""
    told = _told_settings(scores, task, metric)
    if not told:
        return scores.find(model, task, metric)
    found = [scores.find(model, task, name) for name in told]
    if len({len(score.samples) for score in found}) > 1:
        raise StatetrimError(f"the settings of {task} hold different samples of {model}")
    means = [sum(row) / len(row) for row in zip(*(s.samples for s in found), strict=True)]
    return replace(found[0], metric=metric, samples=means)


def averaged(scores: Scores, task: str, metric: str) -> str:
    """Which settings the figure is the mean of, in words; empty where it is no mean."""
    every, told = settings(scores, task), _told_settings(scores, task, metric)
    if not every or metric not in main_metrics(scores, task):
        return ""
    if len(told) in (0, len(every)):
        return f"mean of {len(every)} settings"
    return f"mean of {len(told)} of {len(every)} settings: {', '.join(told)}"


def _told_settings(scores: Scores, task: str, metric: str) -> list[str]:
    """Of a task's figure, the settings on which the original is above chance."""
    if metric not in main_metrics(scores, task):
        return []
    return [name for name in settings(scores, task) if not at_chance(scores, task, name)]


def scores_table(scores: Scores) -> Table:
    """A row a metric, a column a model; empty where a model has no such score."""
    rows = []
    for task in scores.tasks:
        for number, metric in enumerate(scores.metrics(task)):
            cells = [_headline_text(scores, model, task, metric) for model in scores.models]
            name, samples = "" if number else task, cells[0][1]
            rows.append((name, metric, samples, *(text for text, _ in cells)))
    return Table("Scores", ("task", "metric", "samples", *scores.models), rows)


def _headline_text(scores: Scores, model: str, task: str, metric: str) -> tuple[str, str]:
    """The figure, and of how many samples."""
    try:
        score = headline(scores, model, task, metric)
    except StatetrimError:
        return "", ""
    return score_text(score.value, score.unit), str(len(score.samples))


def at_chance(scores: Scores, task: str, metric: str) -> bool:
    """Whether the original's score, with its interval, may be about what guessing gives."""
    score, known = scores.find(scores.baseline, task, metric), TASKS.get(task)
    if score.unit == "perplexity":
        vocabulary = scores.lineage.get("vocabulary")
        tokens = known is not None and known.kind == "text"  # others are by word
        return tokens and type(vocabulary) is int and score.value >= vocabulary
    if score.unit != "share" or not score.higher_is_better:
        return False
    return not above_chance(score.samples, _needed(task, metric), LEVEL)


def _needed(task: str, metric: str) -> float:
    """The share that the original must exceed to have something to lose."""
    known = TASKS.get(task)
    return min((known.chance_of(metric) if known else 0.0) + HEADROOM, 0.99)


def floor_of(scores: Scores, task: str, metric: str) -> tuple[bool, bool]:
    """Whether the original is not shown to be above chance, of a mean on none of its settings; and
    whether more samples could show it."""
    every = settings(scores, task) if metric in main_metrics(scores, task) else []
    parts = every or [metric]
    floor = all(at_chance(scores, task, name) for name in parts)
    return floor, floor and any(_too_few(scores, task, name) for name in parts)


def _too_few(scores: Scores, task: str, metric: str) -> bool:
    """Whether the original's share is not shown to be below what it needs, either."""
    score = scores.find(scores.baseline, task, metric)
    wrong = [1.0 - share for share in score.samples]
    return score.unit == "share" and not above_chance(wrong, 1 - _needed(task, metric), LEVEL)


def loss_of(scores: Scores, model: str, task: str, metric: str) -> Loss:
    """The paired difference to the original, by bootstrap over samples."""
    old, new = (headline(scores, who, task, metric) for who in (scores.baseline, model))
    if not all(isfinite(value) for score in (old, new) for value in score.samples):
        raise StatetrimError(f"{task} {metric} of {model} or {scores.baseline} is not a number")
    pairs = paired(old, new)
    both = {*pairs.before.tolist(), *pairs.after.tolist()}
    binary = new.unit == "share" and both <= {0.0, 1.0}
    change = _change(pairs, new.unit)
    loss = -change if new.higher_is_better else change
    floor = floor_of(scores, task, metric)
    p = mcnemar(pairs.before, pairs.after) if binary else None
    count = len(new.samples)
    return Loss(model, task, metric, new.unit, old.value, new.value, count, loss, p, *floor)


def mean_recall(scores: Scores, model: str) -> str | None:
    """What is lost of recall over several tasks, in words; None where one task says it."""
    told = {x.task for x in losses(scores, model) if "recall" in x.groups and not x.floor}
    change = recall_change(scores, model)
    if change is None or len(told) < 2:
        return None
    return f"{_sentence(-change, 'share')} over {len(told)} tasks"


def recall_change(scores: Scores, model: str) -> Interval | None:
    """Change of mean recall over the recall tasks that say something, in points; else None."""
    told = [x for x in losses(scores, model) if "recall" in x.groups and not x.floor]
    told = [x for x in told if x.unit == "share"]
    if not told:
        return None
    pairs = [
        paired(*(headline(scores, who, x.task, x.metric) for who in (scores.baseline, model)))
        for x in told
    ]
    change = difference_interval(pairs, level=LEVEL)
    if all(_unchanged(pair) for pair in pairs):
        bound = unseen(sum(len(pair.before) for pair in pairs), LEVEL)
        change = Interval(0.0, -bound, bound)
    return _map(change, lambda x: 100 * x)


def _change(pairs: Pairs, unit: Unit) -> Interval:
    """In the unit in which losses of `unit` are told."""
    change = difference_interval([pairs], level=LEVEL)
    if unit == "nats":
        return change
    if unit == "perplexity":
        return _map(change, lambda x: 100 * expm1(min(x, 700.0)))
    if _unchanged(pairs):
        bound = unseen(len(pairs.before), LEVEL)  # nothing to resample, which proves little
        change = Interval(0.0, -bound, bound)
    return _map(change, lambda x: 100 * min(1.0, max(-1.0, x)))


def _unchanged(pairs: Pairs) -> bool:
    return bool((pairs.before == pairs.after).all())


def _map(interval: Interval, change: Callable[[float], float]) -> Interval:
    return Interval(change(interval.estimate), change(interval.low), change(interval.high))
