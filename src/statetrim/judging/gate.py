"""Rules of --fail-if, such as 'recall drop > 2%': violated by scores that break one, or that
cannot show that it holds."""

from collections.abc import Iterator, Sequence

from ..artifacts.scores import Scores
from ..errors import StatetrimError
from ..maths.paired import Interval
from ..tasks.rule import NOT_SHIP, Rule, parse_rule
from .losses import Loss, informative_losses, setting_losses, task_losses
from .verdict import Outcome, Verdict, cut_models, judge_cut, source_mismatches

MAX_MARGIN = 10.0
"""Percent or points: a change with a wider margin than this and than the rule is unknown."""


def find_violation(
    rule: str, scores: Scores, known_verdicts: Sequence[Verdict] | None = None
) -> str | None:
    """How the first model breaks the rule or why it cannot be judged by it; None if all keep it.

    A rule on a group applies to each of its informative tasks and to each setting of a task. The
    rule 'not ship' asks for the verdict: `known_verdicts`, if they were made with more than the
    scores. Raises StatetrimError for a rule that cannot be parsed or a task that was not run.
    """
    if rule.strip() == NOT_SHIP:
        verdicts = known_verdicts or [judge_cut(scores, name) for name in cut_models(scores)]
        for verdict in verdicts:
            if verdict.outcome is not Outcome.SHIP:
                return f"{verdict.model}: {verdict.outcome}: {verdict.reason}"
        return None
    parsed = parse_rule(rule)
    for model in scores.models[1:]:
        violation = _find_model_violation(parsed, scores, model)
        if violation is not None:
            return violation
    return None


def _find_model_violation(rule: Rule, scores: Scores, model: str) -> str | None:
    """How `model` breaks the rule, or why it cannot be judged by it; None if it keeps it. Raises
    StatetrimError if no task of the rule was run."""
    undecided = f"{model} cannot be judged by the rule '{rule.text}'"
    mismatch = next(source_mismatches(scores, model), None)
    if mismatch:
        return f"{undecided}: {mismatch}"
    try:
        all_losses = task_losses(scores, model), setting_losses(scores, model)
    except StatetrimError as error:
        return f"{undecided}: {error}"
    matching, by_setting = (
        [x for x in losses if rule.name in (x.task, x.group)] for losses in all_losses
    )
    if not matching:
        raise StatetrimError(f"--fail-if is about {rule.name!r}, but no such task was run")
    informative = informative_losses(matching)
    if not informative:
        return f"{undecided}: {'; '.join(x.why_uninformative for x in matching)}"
    return next(_iter_violations(rule, model, informative, by_setting), None)


def _iter_violations(
    rule: Rule, model: str, informative: Sequence[Loss], by_setting: Sequence[Loss]
) -> Iterator[str]:
    """A sentence for each task whose estimated change is beyond the limit, then for each setting
    whose lower bound is, then for each task whose interval is too wide to judge. Comparisons are
    negated, so that a change that is not a number breaks the rule."""
    unit = "%" if rule.relative else " points"
    changes = [(x, _change_in_direction(x, rule)) for x in informative]
    for x, change in changes:
        name = rule.name if len(informative) == 1 else x.task
        if not change.estimate <= rule.limit:
            yield (
                f"{model} breaks the rule '{rule.text}': {name} goes from {x.before:.4g} to "
                f"{x.after:.4g}, a {rule.direction} of {change.estimate:.2f}{unit}"
            )
    for x in informative_losses(by_setting):
        change = _change_in_direction(x, rule)
        if not change.low <= rule.limit:
            yield (
                f"{model} breaks the rule '{rule.text}': {x.task}, {x.metric} goes from "
                f"{x.before:.4g} to {x.after:.4g}, a {rule.direction} of at least "
                f"{change.low:.2f}{unit}"
            )
    for x, change in changes:
        if not change.margin <= max(rule.limit, MAX_MARGIN):
            yield (
                f"{model} cannot be judged by the rule '{rule.text}': {x.samples} samples "
                f"of {x.task} leave a {rule.direction} of up to {change.high:.2f}{unit} open; take "
                f"more"
            )


def _change_in_direction(x: Loss, rule: Rule) -> Interval:
    """The change in the rule's direction, in percent of the original or in points."""
    is_harmful = x.higher_is_better == (rule.direction == "drop")
    change = x.loss if is_harmful else -x.loss
    factor = 100 * x.unit.step(x.before)
    if rule.relative:
        if not x.before:
            return change.transformed(lambda bound: float("inf") if bound > 0 else 0.0)
        factor /= x.before
    return change.transformed(lambda bound: factor * bound)
