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
from ..maths.paired import (
    Interval,
    Pairs,
    difference_interval,
    is_above_chance,
    mcnemar,
    zero_event_bound,
)
from ..maths.table import Table
from ..tasks import TASKS
from .scores import Score, Scores, Unit, pair_samples

CONFIDENCE_LEVEL = 0.95
MIN_ABOVE_CHANCE = 0.05
"""How far above chance the original must be, beyond doubt, to have something to lose."""
UNIT_SUFFIX = {"perplexity": "%", "share": " points", "nats": " nats"}
_GROUPS_BY_UNIT: dict[str, tuple[str, ...]] = {
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
    uninformative: bool = False  # the original is not shown to be above chance
    too_few_samples: bool = False  # and more samples could show it

    @property
    def groups(self) -> tuple[str, ...]:
        """What rules may call it besides its name."""
        definition, possible = TASKS.get(self.task), _GROUPS_BY_UNIT[self.unit]
        return (definition.group,) if definition and definition.group in possible else possible

    @property
    def sentence(self) -> str:
        if self.uninformative and self.loss.high >= 0.0:
            return f"not informative: {self.why_uninformative}"
        return _loss_sentence(self.loss, self.unit)

    @property
    def why_uninformative(self) -> str:
        """Why a floor says nothing, as far as it was measured."""
        samples = f"{self.samples} samples of {self.task}"
        if self.too_few_samples:
            return f"{samples} are too few to tell the original from chance"
        if self.unit == "perplexity":
            return f"the original predicts {samples} no better than chance"
        return (
            f"the original is less than {100 * MIN_ABOVE_CHANCE:g} points above chance on {samples}"
        )


def _loss_sentence(loss: Interval, unit: Unit) -> str:
    suffix, digits = UNIT_SUFFIX[unit], 4 if unit == "nats" else 2
    if loss.low <= 0.0 <= loss.high:
        return f"no loss within {abs(loss.high):.{digits}f}{suffix}"
    kind = "loss" if loss.low > 0 else "gain"
    return f"{kind} of {abs(loss.estimate):.{digits}f} ± {loss.margin:.{digits}f}{suffix}"


def task_losses(scores: Scores, model: str) -> list[Loss]:
    """What every task is judged by, for one model."""
    return [
        metric_loss(scores, model, task, metric)
        for task in scores.tasks
        for metric in main_metrics(scores, task)
    ]


def setting_losses(scores: Scores, model: str) -> list[Loss]:
    """The settings that a task's figure is the mean of, each by itself."""
    return [
        metric_loss(scores, model, task, metric)
        for task in scores.tasks
        for metric in setting_metrics(scores, task)
    ]


def main_metrics(scores: Scores, task: str) -> list[str]:
    """What the task is judged by; a task that nobody knows is judged by all it has."""
    metrics = scores.metrics(task)
    definition = TASKS.get(task)
    return [definition.metric] if definition and definition.metric in metrics else metrics


def setting_metrics(scores: Scores, task: str) -> list[str]:
    """The metrics of the original that the task's figure is the mean of; most tasks have none."""
    definition = TASKS.get(task)
    if definition is None or not definition.settings:
        return []
    return [metric for metric in scores.metrics(task) if metric.startswith(definition.settings)]


def headline_score(scores: Scores, model: str, task: str, metric: str) -> Score:
    """The score a task is judged by: where it is a mean of settings, of all those on which the
    original is above chance, sample by sample."""
    informative = _informative_settings(scores, task, metric)
    if not informative:
        return scores.find(model, task, metric)
    setting_scores = [scores.find(model, task, name) for name in informative]
    if len({len(score.samples) for score in setting_scores}) > 1:
        raise StatetrimError(f"the settings of {task} hold different samples of {model}")
    means = [sum(row) / len(row) for row in zip(*(s.samples for s in setting_scores), strict=True)]
    return replace(setting_scores[0], metric=metric, samples=means)


def averaged_settings_text(scores: Scores, task: str, metric: str) -> str:
    """Which settings the figure is the mean of, in words; empty where it is no mean."""
    all_settings, informative = (
        setting_metrics(scores, task),
        _informative_settings(scores, task, metric),
    )
    if not all_settings or metric not in main_metrics(scores, task):
        return ""
    if len(informative) in (0, len(all_settings)):
        return f"mean of {len(all_settings)} settings"
    return f"mean of {len(informative)} of {len(all_settings)} settings: {', '.join(informative)}"


def _informative_settings(scores: Scores, task: str, metric: str) -> list[str]:
    """Of a task's figure, the settings on which the original is above chance."""
    if metric not in main_metrics(scores, task):
        return []
    return [name for name in setting_metrics(scores, task) if not is_at_chance(scores, task, name)]


def scores_table(scores: Scores) -> Table:
    """A row a metric, a column a model; empty where a model has no such score."""
    rows = []
    for task in scores.tasks:
        for number, metric in enumerate(scores.metrics(task)):
            cells = [_score_cell_texts(scores, model, task, metric) for model in scores.models]
            name, samples = "" if number else task, cells[0][1]
            rows.append((name, metric, samples, *(text for text, _ in cells)))
    return Table("Scores", ("task", "metric", "samples", *scores.models), rows)


def _score_cell_texts(scores: Scores, model: str, task: str, metric: str) -> tuple[str, str]:
    """The figure, and of how many samples."""
    try:
        score = headline_score(scores, model, task, metric)
    except StatetrimError:
        return "", ""
    return score_text(score.value, score.unit), str(len(score.samples))


def is_at_chance(scores: Scores, task: str, metric: str) -> bool:
    """Whether the original's score, with its interval, may be about what guessing gives."""
    score, definition = scores.find(scores.baseline, task, metric), TASKS.get(task)
    if score.unit == "perplexity":
        vocabulary = scores.lineage.get("vocabulary")
        is_per_token = definition is not None and definition.kind == "text"  # others are by word
        return is_per_token and type(vocabulary) is int and score.value >= vocabulary
    if score.unit != "share" or not score.higher_is_better:
        return False
    return not is_above_chance(
        score.samples, _min_informative_share(task, metric), CONFIDENCE_LEVEL
    )


def _min_informative_share(task: str, metric: str) -> float:
    """The share that the original must exceed to have something to lose."""
    definition = TASKS.get(task)
    return min((definition.chance_of(metric) if definition else 0.0) + MIN_ABOVE_CHANCE, 0.99)


def uninformative_flags(scores: Scores, task: str, metric: str) -> tuple[bool, bool]:
    """Whether the original is not shown to be above chance, of a mean on none of its settings; and
    whether more samples could show it."""
    setting_names = setting_metrics(scores, task) if metric in main_metrics(scores, task) else []
    metrics = setting_names or [metric]
    uninformative = all(is_at_chance(scores, task, name) for name in metrics)
    return uninformative, uninformative and any(
        _needs_more_samples(scores, task, name) for name in metrics
    )


def _needs_more_samples(scores: Scores, task: str, metric: str) -> bool:
    """Whether the original's share is not shown to be below what it needs, either."""
    score = scores.find(scores.baseline, task, metric)
    wrong_shares = [1.0 - share for share in score.samples]
    return score.unit == "share" and not is_above_chance(
        wrong_shares, 1 - _min_informative_share(task, metric), CONFIDENCE_LEVEL
    )


def metric_loss(scores: Scores, model: str, task: str, metric: str) -> Loss:
    """The paired difference to the original, by bootstrap over samples."""
    before, after = (
        headline_score(scores, name, task, metric) for name in (scores.baseline, model)
    )
    if not all(isfinite(value) for score in (before, after) for value in score.samples):
        raise StatetrimError(f"{task} {metric} of {model} or {scores.baseline} is not a number")
    pairs = pair_samples(before, after)
    values = {*pairs.before.tolist(), *pairs.after.tolist()}
    binary = after.unit == "share" and values <= {0.0, 1.0}
    change = _change_in_report_unit(pairs, after.unit)
    loss = -change if after.higher_is_better else change
    flags = uninformative_flags(scores, task, metric)
    p = mcnemar(pairs.before, pairs.after) if binary else None
    count = len(after.samples)
    return Loss(model, task, metric, after.unit, before.value, after.value, count, loss, p, *flags)


def mean_recall_text(scores: Scores, model: str) -> str | None:
    """What is lost of recall over several tasks, in words; None where one task says it."""
    tasks = {
        x.task for x in task_losses(scores, model) if "recall" in x.groups and not x.uninformative
    }
    change = recall_change(scores, model)
    if change is None or len(tasks) < 2:
        return None
    return f"{_loss_sentence(-change, 'share')} over {len(tasks)} tasks"


def recall_change(scores: Scores, model: str) -> Interval | None:
    """Change of mean recall over the recall tasks that say something, in points; else None."""
    recall_losses = [
        x for x in task_losses(scores, model) if "recall" in x.groups and not x.uninformative
    ]
    recall_losses = [x for x in recall_losses if x.unit == "share"]
    if not recall_losses:
        return None
    pairs = [
        pair_samples(
            *(headline_score(scores, name, x.task, x.metric) for name in (scores.baseline, model))
        )
        for x in recall_losses
    ]
    change = difference_interval(pairs, level=CONFIDENCE_LEVEL)
    if all(_is_unchanged(pair) for pair in pairs):
        bound = zero_event_bound(sum(len(pair.before) for pair in pairs), CONFIDENCE_LEVEL)
        change = Interval(0.0, -bound, bound)
    return _map_interval(change, lambda x: 100 * x)


def _change_in_report_unit(pairs: Pairs, unit: Unit) -> Interval:
    """In the unit in which losses of `unit` are told."""
    change = difference_interval([pairs], level=CONFIDENCE_LEVEL)
    if unit == "nats":
        return change
    if unit == "perplexity":
        return _map_interval(change, lambda x: 100 * expm1(min(x, 700.0)))
    if _is_unchanged(pairs):
        bound = zero_event_bound(
            len(pairs.before), CONFIDENCE_LEVEL
        )  # nothing to resample, which proves little
        change = Interval(0.0, -bound, bound)
    return _map_interval(change, lambda x: 100 * min(1.0, max(-1.0, x)))


def _is_unchanged(pairs: Pairs) -> bool:
    return bool((pairs.before == pairs.after).all())


def _map_interval(interval: Interval, function: Callable[[float], float]) -> Interval:
    return Interval(function(interval.estimate), function(interval.low), function(interval.high))
