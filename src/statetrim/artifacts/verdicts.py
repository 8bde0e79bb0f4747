"""Scores -> what they mean: a sentence per task and model, and gates for scripts."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import expm1

from ..errors import StatetrimError
from ..maths.paired import Interval, difference_interval, mcnemar, unseen
from ..tasks import TASKS
from .scores import Scores

_RULE = re.compile(r"\s*(\w+)\s+(drop|rise)\s*>\s*(\d+(?:\.\d+)?)\s*(%|points?)\s*")
_SUFFIX = {"perplexity": "%", "share": " points", "nats": " nats"}
LEVEL = 0.95


@dataclass(frozen=True)
class Verdict:
    """How much worse a model is than the baseline on one metric; a gain is a negative loss.

    In percent of the baseline for perplexities, in percentage points for shares, in nats for KL.
    """

    model: str
    task: str
    metric: str
    unit: str
    loss: Interval
    p: float | None  # McNemar's mid-p, for right and wrong answers
    floor: bool = False  # the baseline gets nothing right, so there is nothing to lose

    @property
    def sentence(self) -> str:
        low, high, suffix = self.loss.low, self.loss.high, _SUFFIX[self.unit]
        digits = 4 if self.unit == "nats" else 2
        if self.floor and high >= 0.0:
            return "says nothing: the baseline scores 0"
        if low <= 0.0 <= high:
            return f"no loss within {abs(high):.{digits}f}{suffix}"
        size, margin = abs(self.loss.estimate), self.loss.margin
        kind = "loss" if low > 0 else "gain"
        return f"{kind} of {size:.{digits}f} ± {margin:.{digits}f}{suffix}"


def verdicts(scores: Scores) -> list[Verdict]:
    """The main metric of every task, for every model but the baseline."""
    return [
        judge(scores, model, task, TASKS[task].metric)
        for task in scores.tasks
        for model in scores.models[1:]
    ]


def judge(scores: Scores, model: str, task: str, metric: str) -> Verdict:
    """The paired difference to the baseline, by bootstrap over samples."""
    score, pairs = scores.find(model, task, metric), scores.pairs(model, task, metric)
    change = difference_interval([pairs], level=LEVEL)
    both = {*pairs.before.tolist(), *pairs.after.tolist()}
    binary = score.unit == "share" and both <= {0.0, 1.0}
    if binary and bool((pairs.before == pairs.after).all()):
        bound = unseen(len(pairs.before), LEVEL)  # nothing to resample, which proves little
        change = Interval(0.0, -bound, bound)
    if score.unit == "share":
        change = _map(change, lambda x: 100 * x)
    elif score.unit == "perplexity":
        change = _map(change, lambda x: 100 * expm1(min(x, 700.0)))
    loss = -change if score.higher_is_better else change
    p = mcnemar(pairs.before, pairs.after) if binary else None
    floor = score.higher_is_better and scores.find(scores.baseline, task, metric).value == 0.0
    return Verdict(model, task, metric, score.unit, loss, p, floor)


def recall_change(scores: Scores, model: str) -> Interval | None:
    """Change of mean recall over the recall tasks of the run, in points; None without any."""
    tasks = [task for task in scores.tasks if TASKS[task].group == "recall"]
    if not tasks:
        return None
    pairs = [scores.pairs(model, task, TASKS[task].metric) for task in tasks]
    change = difference_interval(pairs, level=LEVEL)
    if all(bool((pair.before == pair.after).all()) for pair in pairs):
        bound = unseen(sum(len(pair.before) for pair in pairs), LEVEL)
        change = Interval(0.0, -bound, bound)
    return _map(change, lambda x: 100 * x)


def check_rule(rule: str) -> None:
    """Refuse a rule that cannot be read, before hours of work."""
    _parse(rule)


def broken(rule: str, scores: Scores) -> str | None:
    """A sentence when some model breaks the rule, such as 'recall drop > 2%'; None when none does.

    `%` is relative to the baseline's figure; `points` are percentage points of a share.
    """
    name, direction, most, unit = _parse(rule)
    tasks = [task for task in scores.tasks if name in (task, TASKS[task].group)]
    if not tasks:
        raise StatetrimError(f"--fail-if is about {name!r}, but no such task was run")
    for model in scores.models[1:]:
        before, after = (_mean(scores, who, tasks) for who in (scores.baseline, model))
        moved = before - after if direction == "drop" else after - before
        if unit == "%":
            moved = moved / before if before else (float("inf") if moved > 0 else 0.0)
        if 100 * moved > most:
            shown = "%" if unit == "%" else " points"
            return (
                f"{model} breaks the rule '{rule.strip()}': {name} goes from {before:.4g} to "
                f"{after:.4g}, a {direction} of {100 * moved:.2f}{shown}"
            )
    return None


def _mean(scores: Scores, model: str, tasks: list[str]) -> float:
    found = [scores.find(model, task, TASKS[task].metric) for task in tasks]
    return sum(score.value for score in found) / len(found)


def _parse(rule: str) -> tuple[str, str, float, str]:
    match = _RULE.fullmatch(rule)
    groups = {task.group for task in TASKS.values()}
    if match is None or match[1] not in {*TASKS, *groups}:
        raise StatetrimError(
            f"{rule[:80]!r} is not a rule; write one such as 'recall drop > 2%' or "
            f"'wikitext rise > 5%', with the name of a task or one of {', '.join(sorted(groups))}, "
            f"and % of the baseline or percentage points"
        )
    return match[1], match[2], float(match[3]), match[4]


def _map(interval: Interval, change: Callable[[float], float]) -> Interval:
    return Interval(change(interval.estimate), change(interval.low), change(interval.high))
