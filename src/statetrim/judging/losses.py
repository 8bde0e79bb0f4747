"""Scores -> losses: how much worse a model is than the original, by task, on the same samples.

A loss is positive where the cut is worse. A task on which the original is not significantly above
chance is uninformative: a cut has nothing to lose there. It enters no mean, rule or verdict.
"""

from dataclasses import dataclass, replace
from functools import partial
from math import isfinite

from ..artifacts.scores import Score, Scores, pair_samples
from ..errors import StatetrimError
from ..maths.formatting import Table
from ..maths.paired import TAIL, Interval, is_above_chance, mcnemar
from ..tasks import TASKS, chance_of, group_of, setting_text
from ..tasks.unit import UNITS, Unit

MIN_ABOVE_CHANCE = 0.05
"""How far above chance the original's share must significantly be for a task to be informative."""


@dataclass(frozen=True)
class Loss:
    """How much worse a model is than the original on one metric; a gain is a negative loss."""

    model: str
    task: str
    metric: str
    unit: Unit
    before: float
    after: float
    samples: int
    loss: Interval  # in the unit of losses
    higher_is_better: bool
    p: float | None  # McNemar's mid-p, for right and wrong answers
    uninformative: bool = False  # the original is not significantly above chance
    too_few_samples: bool = False  # uninformative, but more samples could change that

    @property
    def group(self) -> str:
        """The group whose rules and limits apply to this metric."""
        return group_of(self.task, self.unit)

    @property
    def setting_name(self) -> str:
        """The metric for people, such as "127 pairs" for a setting of mqar."""
        return setting_text(self.task, self.metric)

    @property
    def sentence(self) -> str:
        """The loss or gain with its margin, or why the task is uninformative."""
        if self.uninformative and self.loss.high >= 0.0:
            return f"not informative: {self.why_uninformative}"
        suffix, digits = self.unit.suffix, self.unit.digits
        if self.loss.low <= 0.0 <= self.loss.high:
            return f"no loss within {abs(self.loss.high):.{digits}f}{suffix}"
        kind, size = "loss" if self.loss.low > 0 else "gain", abs(self.loss.estimate)
        return f"{kind} of {size:.{digits}f} ± {self.loss.margin:.{digits}f}{suffix}"

    @property
    def why_uninformative(self) -> str:
        """Why an uninformative task shows no loss, for people."""
        samples = f"{self.samples} samples of {self.task}"
        if self.too_few_samples:
            return f"{samples} are too few to tell the original from chance"
        if self.unit.guess == "vocabulary":
            return f"the original predicts {samples} no better than chance"
        return (
            f"the original is less than {100 * MIN_ABOVE_CHANCE:g} points above chance on {samples}"
        )


def task_losses(scores: Scores, model: str) -> list[Loss]:
    """The losses by which a model's tasks are judged, one per main metric."""
    names = [(task, metric) for task in scores.tasks for metric in main_metrics(scores, task)]
    return [metric_loss(scores, model, *name) for name in names]


def setting_losses(scores: Scores, model: str) -> list[Loss]:
    """The losses of one model on the single settings of tasks whose main metric is their mean."""
    names = [(task, metric) for task in scores.tasks for metric in setting_metrics(scores, task)]
    return [metric_loss(scores, model, *name) for name in names]


def main_metrics(scores: Scores, task: str) -> list[str]:
    """The metric by which a task is judged; all metrics of a task of lm-eval, or of one whose
    metric was not measured."""
    metrics = scores.metrics(task)
    definition = TASKS.get(task)
    return [definition.metric] if definition and definition.metric in metrics else metrics


def setting_metrics(scores: Scores, task: str) -> list[str]:
    """The metrics whose mean is the task's main metric; most tasks have none."""
    return [metric for metric in scores.metrics(task) if is_setting(task, metric)]


def is_setting(task: str, metric: str) -> bool:
    """Whether the metric is one setting of a task whose main metric is their mean."""
    definition = TASKS.get(task)
    return bool(definition and definition.settings and metric.startswith(definition.settings))


def _averaged_settings(scores: Scores, task: str, metric: str) -> list[str]:
    """The settings of which a metric is the mean; empty if it is not a mean."""
    return setting_metrics(scores, task) if metric in main_metrics(scores, task) else []


def headline_score(scores: Scores, model: str, task: str, metric: str) -> Score:
    """The score by which a task is judged.

    A main metric with settings is the mean, sample by sample, over the settings on which the
    original is above chance; without such settings, and for other metrics, it is the stored score.
    Raises StatetrimError if a score is missing, or if settings differ in their number of samples.
    """
    informative = _informative_settings(scores, task, metric)
    if not informative:
        return scores.find(model, task, metric)
    setting_scores = [scores.find(model, task, name) for name in informative]
    rows = [score.samples for score in setting_scores]
    if len(set(map(len, rows))) > 1:
        raise StatetrimError(f"the settings of {task} hold different samples of {model}")
    means = [sum(values) / len(values) for values in zip(*rows, strict=True)]
    return replace(setting_scores[0], metric=metric, samples=means)


def averaged_settings_text(scores: Scores, task: str, metric: str) -> str:
    """Which settings a metric is the mean of, for people; empty if it is not a mean."""
    all_settings = _averaged_settings(scores, task, metric)
    if not all_settings:
        return ""
    informative = _informative_settings(scores, task, metric)
    if len(informative) in (0, len(all_settings)):
        return f"mean of {len(all_settings)} settings"
    named = ", ".join(setting_text(task, name) for name in informative)
    return f"mean of {len(informative)} of {len(all_settings)} settings: {named}"


def _informative_settings(scores: Scores, task: str, metric: str) -> list[str]:
    """The settings of a mean on which the original is above chance."""
    settings = _averaged_settings(scores, task, metric)
    return [name for name in settings if not is_at_chance(scores, task, name)]


def scores_table(scores: Scores) -> Table:
    """`Scores.table` with the scores by which tasks are judged."""
    return scores.table(partial(headline_score, scores))


def is_at_chance(scores: Scores, task: str, metric: str) -> bool:
    """Whether the original's share is not significantly more than MIN_ABOVE_CHANCE above guessing,
    or its perplexity per token is at least the vocabulary size. False for other metrics."""
    score = scores.find(scores.baseline, task, metric)
    guess = UNITS[score.unit].guess
    if guess == "vocabulary":
        vocabulary = scores.lineage.get("vocabulary")
        is_per_token = task == "text"  # lm-eval's are by word
        return is_per_token and type(vocabulary) is int and score.value >= vocabulary
    if guess != "share" or not score.higher_is_better:
        return False
    return not is_above_chance(score.samples, _min_informative_share(score))


def known_chance(score: Score) -> float | None:
    """The share of guessing: as stored, or that of our own task; None if it is not known."""
    return chance_of(score.task, score.metric) if score.chance is None else score.chance


def _min_informative_share(score: Score) -> float:
    """The share that the original must exceed for the metric to be informative; a chance that is
    not known counts as 0."""
    return min((known_chance(score) or 0.0) + MIN_ABOVE_CHANCE, 0.99)


def uninformative_flags(scores: Scores, task: str, metric: str) -> tuple[bool, bool]:
    """`Loss.uninformative` and `Loss.too_few_samples` of a metric.

    A mean of settings is uninformative if the original is at chance on all of them.
    """
    too_few_samples = False
    for name in _averaged_settings(scores, task, metric) or [metric]:
        if not is_at_chance(scores, task, name):
            return False, False
        too_few_samples = too_few_samples or _needs_more_samples(scores, task, name)
    return True, too_few_samples


def _needs_more_samples(scores: Scores, task: str, metric: str) -> bool:
    """Whether the original's share is not significantly below the informative one either."""
    score = scores.find(scores.baseline, task, metric)
    wrong_shares = [1.0 - share for share in score.samples]
    needed = 1 - _min_informative_share(score)
    is_share = UNITS[score.unit].guess == "share"
    return is_share and not is_above_chance(wrong_shares, needed)


def look_tail(scores: Scores, samples: int) -> float:
    """The tail of an interval of that many samples, which `evaluate` looked at several times.

    Each look may err with the part of the tail that is its part of the most samples it might have
    taken, so that all looks together err no more often than one interval would.
    """
    looks = scores.lineage.get("looks")
    sizes = looks.get("sizes") if isinstance(looks, dict) else None
    most = looks.get("most") if isinstance(looks, dict) else None
    if not isinstance(sizes, list) or type(most) is not int or samples not in sizes:
        return TAIL
    number = sizes.index(samples)
    new = samples - (sizes[number - 1] if number else 0)
    return TAIL * new / most if 0 < new <= most else TAIL


def metric_loss(scores: Scores, model: str, task: str, metric: str) -> Loss:
    """The paired difference to the original, with its interval, corrected for several looks."""
    before = headline_score(scores, scores.baseline, task, metric)
    after = headline_score(scores, model, task, metric)
    if not all(map(isfinite, [*before.samples, *after.samples])):
        raise StatetrimError(f"{task} {metric} of {model} or {scores.baseline} is not a number")
    pairs = pair_samples(before, after)
    values = {*pairs.before.tolist(), *pairs.after.tolist()}
    unit, higher_is_better = UNITS[after.unit], after.higher_is_better
    binary = unit.guess == "share" and values <= {0.0, 1.0}
    change = unit.change([pairs], look_tail(scores, len(after.samples)))
    uninformative, too_few_samples = uninformative_flags(scores, task, metric)
    return Loss(
        model=model,
        task=task,
        metric=metric,
        unit=unit,
        before=before.value,
        after=after.value,
        samples=len(after.samples),
        loss=-change if higher_is_better else change,
        higher_is_better=higher_is_better,
        p=mcnemar(pairs.before, pairs.after) if binary else None,
        uninformative=uninformative,
        too_few_samples=too_few_samples,
    )
