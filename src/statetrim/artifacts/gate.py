"""Rules for scripts, such as 'recall drop > 2%': exit code 1 where scores break one, or where they
cannot show that it holds."""

from collections.abc import Iterator, Sequence

from ..errors import StatetrimError
from ..maths.paired import Interval
from ..tasks.rule import NOT_SHIP, Rule, parse_rule
from .losses import Loss, setting_losses, task_losses
from .scores import Scores
from .verdict import Outcome, Verdict, judge_cuts, source_mismatches

MAX_MARGIN = 10.0
"""Percent or points: a figure with a wider margin than this and than the rule is no figure."""


def find_violation(
    rule: str, scores: Scores, known_verdicts: Sequence[Verdict] | None = None
) -> str | None:
    """A sentence when some model breaks the rule or cannot be judged by it; None when all keep it.

    A group's rule holds for each of its tasks on which the original is above chance, and for each
    setting of a task. 'not ship' asks for the verdict; `judged` are the verdicts where they are
    made with more than the scores.
    """
    if rule.strip() == NOT_SHIP:
        not_shippable = [
            v for v in known_verdicts or judge_cuts(scores) if v.outcome is not Outcome.SHIP
        ]
        return (
            f"{not_shippable[0].model}: {not_shippable[0].outcome}: {not_shippable[0].reason}"
            if not_shippable
            else None
        )
    parsed = parse_rule(rule)
    for model in scores.models[1:]:
        violation = _find_model_violation(parsed, scores, model)
        if violation is not None:
            return violation
    return None


def _find_model_violation(rule: Rule, scores: Scores, model: str) -> str | None:
    rule_text = f"the rule '{rule.text}'"
    mismatch = next(source_mismatches(scores, model), None)
    if mismatch:
        return f"{model} cannot be judged by {rule_text}: {mismatch}"
    try:
        matching = [x for x in task_losses(scores, model) if rule.name in (x.task, *x.groups)]
        by_setting = [x for x in setting_losses(scores, model) if rule.name in (x.task, *x.groups)]
    except StatetrimError as error:
        return f"{model} cannot be judged by {rule_text}: {error}"
    if not matching:
        raise StatetrimError(f"--fail-if is about {rule.name!r}, but no such task was run")
    informative = [x for x in matching if not x.uninformative]
    if not informative:
        return f"{model} cannot be judged by {rule_text}: {'; '.join(x.why_uninformative for x in matching)}"
    return next(_iter_violations(rule, model, informative, by_setting), None)


def _iter_violations(
    rule: Rule, model: str, informative: Sequence[Loss], by_setting: Sequence[Loss]
) -> Iterator[str]:
    unit = "%" if rule.relative else " points"
    for x in informative:
        change = _change_in_direction(x, rule)
        name = rule.name if len(informative) == 1 else x.task
        if change.estimate > rule.limit:
            yield (
                f"{model} breaks the rule '{rule.text}': {name} goes from {x.before:.4g} to "
                f"{x.after:.4g}, a {rule.direction} of {change.estimate:.2f}{unit}"
            )
    for x in by_setting:
        change = _change_in_direction(x, rule)
        if not x.uninformative and change.low > rule.limit:
            yield (
                f"{model} breaks the rule '{rule.text}': {x.task}, {x.metric} goes from "
                f"{x.before:.4g} to {x.after:.4g}, a {rule.direction} of at least "
                f"{change.low:.2f}{unit}"
            )
    for x in informative:
        change = _change_in_direction(x, rule)
        if change.margin > max(rule.limit, MAX_MARGIN):
            yield (
                f"{model} cannot be judged by the rule '{rule.text}': {x.samples} samples of "
                f"{x.task} leave a {rule.direction} of up to {change.high:.2f}{unit} open; take more"
            )


def _change_in_direction(x: Loss, rule: Rule) -> Interval:
    """The change in the rule's direction: percent of the original, or points."""
    harmful = (x.unit == "share") == (rule.direction == "drop")
    change = x.loss if harmful else -x.loss
    points = {"perplexity": x.before, "share": 1.0, "nats": 100.0}[x.unit]
    if rule.relative and x.unit != "perplexity":
        if not x.before:
            return Interval(*(float("inf") if bound > 0 else 0.0 for bound in _bounds(change)))
        points /= x.before
    elif rule.relative:
        points = 1.0
    return Interval(*(points * bound for bound in _bounds(change)))


def _bounds(interval: Interval) -> tuple[float, float, float]:
    return interval.estimate, interval.low, interval.high
