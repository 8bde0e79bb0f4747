"""Measured shapes -> the recommended one: the rule of every comparison of shapes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..artifacts.decision import MeasuredShape, ShapeScore
from ..maths.paired import UNBOUNDED_MARGIN, Interval
from ..tasks import TASKS
from ..tasks.unit import UNITS
from .losses import Loss, is_setting
from .verdict import (
    REQUIRED_GROUPS,
    LimitStatus,
    limit_status,
    loss_text,
    metric_label,
    severity,
    with_limits,
)

_SIZE_STEPS = 8
"""Sizes are compared in eighths of the original's state; smaller differences are a tie."""


@dataclass(frozen=True)
class JudgedCut:
    """One measured shape, compared with the limits of the verdict."""

    point: MeasuredShape
    share: float  # of the bytes of the original's state
    limit_status: LimitStatus
    severity: float  # the worst ratio of a loss to its limit
    losses: Sequence[Loss]  # of informative tasks, the worst first
    on_frontier: bool = False  # Pareto-optimal in state bytes and severity

    @property
    def worst(self) -> Loss | None:
        """The largest loss relative to its limit; None without informative tasks."""
        return self.losses[0] if self.losses else None

    @property
    def is_within(self) -> bool:
        """Whether all losses are within the limits."""
        return self.limit_status is LimitStatus.WITHIN

    @property
    def rank(self) -> tuple[bool, int, float]:
        """Shapes in the order of this key are better first: those within the limits by size, in
        eighths, then by severity; the others by severity. Adding a shape never changes the order of
        others."""
        size = round(_SIZE_STEPS * self.share) if self.is_within else 0
        return not self.is_within, size, self.severity


@dataclass(frozen=True)
class Recommendation:
    """All measured shapes, the chosen one (None if nothing was measured), and why."""

    cuts: Sequence[JudgedCut]
    chosen: JudgedCut | None
    reason: str  # a sentence without its full stop


def recommend(points: Sequence[MeasuredShape]) -> Recommendation:
    """Choose the smallest state within the limits of the verdict, of equal sizes the one that loses
    least; if none is within the limits, the one that comes nearest.

    The original is the first point without a method; another is the original with fewer bits per
    number, which is compared but not chosen. There is no random cut to compare with, so this is no
    verdict.
    """
    original = next((point for point in points if point.method == "none"), None)
    if original is None or all(point.method == "none" for point in points):
        return Recommendation([], None, "no shape was measured together with the original")
    judged = [_judge_point(original, point) for point in points if point is not original]
    cuts = [replace(cut, on_frontier=_is_on_frontier(cut, judged)) for cut in judged]
    rounded = [cut for cut in cuts if cut.point.method == "none"]
    chosen = min((cut for cut in cuts if cut not in rounded), key=lambda cut: cut.rank)
    reason = "the smallest state within the limits"
    if not chosen.is_within:
        clear = any(cut.limit_status is LimitStatus.BEYOND for cut in cuts)
        why = "no shape is within the limits" if clear else "there are too few samples to tell"
        reason = f"{why}, and this one comes nearest"
    worst = f"; {loss_text(chosen.worst)}" if chosen.worst else ""
    size = f"{chosen.point} ({chosen.share:.0%} of the state)"
    for cut in rounded:
        worst += f"; without a cut, a {cut.point.state_dtype} state ({cut.share:.0%})"
        worst += f": {metric_label(cut.worst)}, {cut.worst.sentence}" if cut.worst else ""
    return Recommendation(cuts, chosen, f"{size}: {reason}{worst}")


def point_losses(original: MeasuredShape, point: MeasuredShape) -> list[Loss]:
    """The losses against the original by main metric and by setting of a task."""
    losses = []
    for name, after in point.scores.items():
        before, (task, _, metric) = original.scores.get(name), name.partition(" ")
        definition = TASKS.get(task)
        counted = definition is None or metric == definition.metric or is_setting(task, metric)
        if before is not None and counted and after.unit in UNITS:
            loss = Loss(
                model=str(point),
                task=task,
                metric=metric,
                unit=UNITS[after.unit],
                before=before.value,
                after=after.value,
                samples=0,  # a decision does not store them
                loss=_loss_interval(before, after),
                higher_is_better=after.higher_is_better,
                p=None,
                uninformative=before.floor,
            )
            losses.append(loss)
    return losses


def _judge_point(original: MeasuredShape, point: MeasuredShape) -> JudgedCut:
    """Compare the losses of a cut with their limits; `on_frontier` is not known yet."""
    losses = with_limits(point_losses(original, point))
    share = point.state_bytes / original.state_bytes
    largest = severity(losses[0]) if losses else 0.0
    return JudgedCut(point, share, _status_of_losses(losses), largest, losses)


def _status_of_losses(losses: Sequence[Loss]) -> LimitStatus:
    """The worst status; unclear if a required group of tasks is missing."""
    statuses = {limit_status(x) for x in losses}
    groups = {x.group for x in losses}
    if LimitStatus.BEYOND in statuses:
        return LimitStatus.BEYOND
    if LimitStatus.UNCLEAR in statuses or not groups.issuperset(REQUIRED_GROUPS):
        return LimitStatus.UNCLEAR
    return LimitStatus.WITHIN


def _is_on_frontier(cut: JudgedCut, cuts: Sequence[JudgedCut]) -> bool:
    """Whether no other cut is at least as small and as good, and better in one of both."""
    figures = cut.point.state_bytes, cut.severity
    for other in cuts:
        others = other.point.state_bytes, other.severity
        if others != figures and all(a <= b for a, b in zip(others, figures, strict=True)):
            return False
    return True


def _loss_interval(before: ShapeScore, after: ShapeScore) -> Interval:
    """The loss against the original, in the unit of losses, from values and their bounds."""
    unit, sign = UNITS[after.unit], -1.0 if after.higher_is_better else 1.0
    estimate = sign * unit.change_between(before.value, after.value)
    if after.low is None or after.high is None:
        return Interval(estimate, estimate - UNBOUNDED_MARGIN, estimate + UNBOUNDED_MARGIN)
    bounds = [sign * unit.change_between(before.value, x) for x in (after.low, after.high)]
    return Interval(estimate, min(bounds), max(bounds))
