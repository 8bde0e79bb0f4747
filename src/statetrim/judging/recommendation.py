"""A sweep -> the recommended shape: the smallest state whose losses are within the limits."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..artifacts.sweep import Point, Sweep, SweepScore
from ..maths.paired import UNBOUNDED_MARGIN, Interval
from ..maths.units import is_number
from ..tasks import TASKS
from ..tasks.unit import UNITS
from .losses import Loss, informative_losses
from .verdict import (
    REQUIRED_GROUPS,
    LimitStatus,
    compare_with_limit,
    loss_text,
    severity,
    ship_limit,
    worst_setting,
)

_NO_ORIGINAL = "the sweep holds no original to compare with"


@dataclass(frozen=True)
class JudgedCut:
    """One cut of a sweep, compared with the limits of the verdict."""

    point: Point
    limit_status: LimitStatus
    severity: float  # the worst ratio of a loss to its limit
    losses: Sequence[Loss]  # of informative tasks, the worst first
    on_frontier: bool  # Pareto-optimal in state bytes and severity

    @property
    def worst(self) -> Loss | None:
        """The loss on a setting if one is beyond its limit, else the largest loss relative to its
        limit; None without informative tasks."""
        return self.losses[0] if self.losses else None

    @property
    def shape(self) -> str:
        return f"{self.point.keep}x{self.point.keep_values}"


@dataclass(frozen=True)
class Recommendation:
    """All cuts of a sweep and the chosen one, None if no cut is within the limits."""

    cuts: Sequence[JudgedCut]
    chosen: JudgedCut | None
    reason: str  # a sentence without its full stop

    @property
    def closest(self) -> JudgedCut | None:
        """The cut of lowest severity."""
        return min(self.cuts, key=lambda cut: cut.severity, default=None)


def recommend(sweep: Sweep) -> Recommendation:
    """Choose the smallest state within the limits of the verdict; none if no cut is within them.

    A sweep has no random cut to compare with, so only `trim` gives a verdict.
    """
    original = next((point for point in sweep.points if point.method == "none"), None)
    if original is None:
        return Recommendation([], None, _NO_ORIGINAL)
    judged = []
    for point in sweep.points:
        if point is not original and is_number(point.state_bytes):
            judged.append(_judge_point(original, point))
    if not judged:
        return Recommendation([], None, _NO_ORIGINAL)
    cuts = [replace(cut, on_frontier=_is_on_frontier(cut, judged)) for cut in judged]
    within_limits = [cut for cut in cuts if cut.limit_status is LimitStatus.WITHIN]
    if within_limits:
        chosen = min(within_limits, key=lambda cut: (cut.point.state_bytes, cut.severity))
        share = 100 * chosen.point.state_bytes / original.state_bytes
        reason = f"the smallest state within the limits, {share:.0f}% of the original's"
        return Recommendation(cuts, chosen, reason)
    if all(cut.limit_status is LimitStatus.UNCLEAR for cut in cuts):
        return Recommendation(cuts, None, "too few samples, or too few tasks, to tell")
    closest = min(cuts, key=lambda cut: cut.severity)
    worst = f": {loss_text(closest.worst)}" if closest.worst else ""
    reason = f"no shape is within the limits; {closest.shape} comes nearest{worst}"
    return Recommendation(cuts, None, reason)


def point_losses(original: Point, point: Point) -> list[Loss]:
    """The losses against the original by main metric and by setting of a task."""
    losses = []
    for name, after in point.scores.items():
        before, (task, _, metric) = original.scores.get(name), name.partition(" ")
        if before is None or not is_number(before.value) or not is_number(after.value):
            continue
        definition = TASKS.get(task)
        counted = definition is None or metric == definition.metric or _is_setting(task, metric)
        if counted and after.unit in UNITS:
            loss = Loss(
                model=f"{point.keep}x{point.keep_values}",
                task=task,
                metric=metric,
                unit=UNITS[after.unit],
                before=before.value,
                after=after.value,
                samples=0,  # a sweep does not store them
                loss=_loss_interval(before, after),
                higher_is_better=after.higher_is_better,
                p=None,
                uninformative=bool(before.floor),
            )
            losses.append(loss)
    return losses


def _judge_point(original: Point, point: Point) -> JudgedCut:
    """Compare the losses of a cut with their limits; `on_frontier` is not known yet."""
    main, by_setting = [], []
    for x in informative_losses(point_losses(original, point)):
        if ship_limit(x) is None:
            continue
        if _is_setting(x.task, x.metric):
            by_setting.append(x)
        else:
            main.append(x)
    main.sort(key=severity, reverse=True)
    worst_severity = severity(main[0]) if main else 0.0
    setting = worst_setting(by_setting)
    if setting is not None:
        worst_severity = max(worst_severity, severity(setting))
        return JudgedCut(point, LimitStatus.BEYOND, worst_severity, [setting, *main], False)
    return JudgedCut(point, _status_of_losses(main), worst_severity, main, False)


def _status_of_losses(losses: Sequence[Loss]) -> LimitStatus:
    """The worst status; unclear if a required group of tasks is missing."""
    statuses, groups = set(), set[str]()
    for x in losses:
        statuses.add(compare_with_limit(x.loss, ship_limit(x) or 0.0))
        groups.update(x.groups)
    if LimitStatus.BEYOND in statuses:
        return LimitStatus.BEYOND
    if LimitStatus.UNCLEAR in statuses or not groups.issuperset(REQUIRED_GROUPS):
        return LimitStatus.UNCLEAR
    return LimitStatus.WITHIN


def _is_on_frontier(cut: JudgedCut, cuts: Sequence[JudgedCut]) -> bool:
    """Whether no other cut is at least as small and as good, and better in one of both."""
    size, cut_severity = cut.point.state_bytes, cut.severity
    for other in cuts:
        other_size = other.point.state_bytes
        at_least_as_good = other_size <= size and other.severity <= cut_severity
        if at_least_as_good and (other_size < size or other.severity < cut_severity):
            return False
    return True


def _loss_interval(before: SweepScore, after: SweepScore) -> Interval:
    """The loss against the original, in the unit of losses, from values and their bounds."""
    unit, sign = UNITS[after.unit], -1.0 if after.higher_is_better else 1.0
    estimate = sign * unit.change_between(before.value, after.value)
    if after.low is None or after.high is None:
        return Interval(estimate, estimate - UNBOUNDED_MARGIN, estimate + UNBOUNDED_MARGIN)
    bounds = [sign * unit.change_between(before.value, x) for x in (after.low, after.high)]
    return Interval(estimate, min(bounds), max(bounds))


def _is_setting(task: str, metric: str) -> bool:
    """Whether the metric is one setting of a task whose main metric is their mean."""
    definition = TASKS.get(task)
    return bool(definition and definition.settings and metric.startswith(definition.settings))
