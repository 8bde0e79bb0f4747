"""Rules for scripts, such as 'recall drop > 2%': exit code 1 where scores break one, or where they
cannot show that it holds."""

from collections.abc import Iterator, Sequence

from ..errors import StatetrimError
from ..maths.paired import Interval
from ..tasks.rule import NOT_SHIP, Rule, parse_rule
from .losses import Loss, losses, setting_losses
from .scores import Scores
from .verdict import Outcome, Verdict, mismatches, verdicts

COARSE = 10.0
"""Percent or points: a figure with a wider margin than this and than the rule is no figure."""


def broken(rule: str, scores: Scores, judged: Sequence[Verdict] | None = None) -> str | None:
    """A sentence when some model breaks the rule or cannot be judged by it; None when all keep it.

    A group's rule holds for each of its tasks on which the original is above chance, and for each
    setting of a task. 'not ship' asks for the verdict; `judged` are the verdicts where they are
    made with more than the scores.
    """
    if rule.strip() == NOT_SHIP:
        worst = [v for v in judged or verdicts(scores) if v.outcome is not Outcome.SHIP]
        return f"{worst[0].model}: {worst[0].outcome}: {worst[0].reason}" if worst else None
    parsed = parse_rule(rule)
    for model in scores.models[1:]:
        said = _broken_by(parsed, scores, model)
        if said is not None:
            return said
    return None


def _broken_by(rule: Rule, scores: Scores, model: str) -> str | None:
    about = f"the rule '{rule.text}'"
    doubt = next(mismatches(scores, model), None)
    if doubt:
        return f"{model} cannot be judged by {about}: {doubt}"
    try:
        found = [x for x in losses(scores, model) if rule.name in (x.task, *x.groups)]
        single = [x for x in setting_losses(scores, model) if rule.name in (x.task, *x.groups)]
    except StatetrimError as error:
        return f"{model} cannot be judged by {about}: {error}"
    if not found:
        raise StatetrimError(f"--fail-if is about {rule.name!r}, but no such task was run")
    told = [x for x in found if not x.floor]
    if not told:
        return f"{model} cannot be judged by {about}: {'; '.join(x.guessed for x in found)}"
    return next(_failures(rule, model, told, single), None)


def _failures(
    rule: Rule, model: str, told: Sequence[Loss], single: Sequence[Loss]
) -> Iterator[str]:
    unit = "%" if rule.relative else " points"
    for x in told:
        moved = _moved(x, rule)
        name = rule.name if len(told) == 1 else x.task
        if moved.estimate > rule.most:
            yield (
                f"{model} breaks the rule '{rule.text}': {name} goes from {x.before:.4g} to "
                f"{x.after:.4g}, a {rule.direction} of {moved.estimate:.2f}{unit}"
            )
    for x in single:
        moved = _moved(x, rule)
        if not x.floor and moved.low > rule.most:
            yield (
                f"{model} breaks the rule '{rule.text}': {x.task}, {x.metric} goes from "
                f"{x.before:.4g} to {x.after:.4g}, a {rule.direction} of at least "
                f"{moved.low:.2f}{unit}"
            )
    for x in told:
        moved = _moved(x, rule)
        if moved.margin > max(rule.most, COARSE):
            yield (
                f"{model} cannot be judged by the rule '{rule.text}': {x.samples} samples of "
                f"{x.task} leave a {rule.direction} of up to {moved.high:.2f}{unit} open; take more"
            )


def _moved(x: Loss, rule: Rule) -> Interval:
    """The change in the rule's direction: percent of the original, or points."""
    harmful = (x.unit == "share") == (rule.direction == "drop")
    moved = x.loss if harmful else -x.loss
    points = {"perplexity": x.before, "share": 1.0, "nats": 100.0}[x.unit]
    if rule.relative and x.unit != "perplexity":
        if not x.before:
            return Interval(*(float("inf") if end > 0 else 0.0 for end in _ends(moved)))
        points /= x.before
    elif rule.relative:
        points = 1.0
    return Interval(*(points * end for end in _ends(moved)))


def _ends(interval: Interval) -> tuple[float, float, float]:
    return interval.estimate, interval.low, interval.high
