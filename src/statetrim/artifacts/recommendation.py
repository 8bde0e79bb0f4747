"""A sweep -> the shape to take: the smallest state whose losses are within the verdict's limits."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..maths.paired import UNBOUNDED_MARGIN, Interval
from ..maths.units import is_number
from ..tasks import TASKS
from .losses import Loss
from .sweep import Point, Sweep, SweepScore
from .verdict import (
    REQUIRED_GROUPS,
    LimitStatus,
    compare_with_limit,
    loss_text,
    severity,
    ship_limit,
    worst_setting,
)


@dataclass(frozen=True)
class JudgedCut:
    """One cut of a sweep."""

    point: Point
    limit_status: LimitStatus
    severity: float  # the worst loss over its limit
    losses: Sequence[Loss]  # of tasks that say something, the worst first
    on_frontier: bool  # no other cut is as small and as good

    @property
    def worst(self) -> Loss | None:
        return self.losses[0] if self.losses else None

    @property
    def shape(self) -> str:
        return f"{self.point.keep}x{self.point.keep_values}"


@dataclass(frozen=True)
class Recommendation:
    """Every cut of the sweep, judged; `chosen` is None where none is within the limits."""

    cuts: Sequence[JudgedCut]
    chosen: JudgedCut | None
    reason: str  # a sentence without its full stop

    @property
    def closest(self) -> JudgedCut | None:
        """The cut that loses least for its limits."""
        return min(self.cuts, key=lambda cut: cut.severity, default=None)


def recommend(sweep: Sweep) -> Recommendation:
    """By the limits of the verdict; a sweep has no random cut, so that `trim` has the last word."""
    original = next((point for point in sweep.points if point.method == "none"), None)
    points = [
        point for point in sweep.points if point is not original and is_number(point.state_bytes)
    ]
    if original is None or not points:
        return Recommendation([], None, "the sweep holds no original to compare with")
    judgements = [_judge_point(original, point) for point in points]
    cuts = [
        JudgedCut(
            point, status, severity_ratio, informative, _is_on_frontier(number, points, judgements)
        )
        for number, (point, (status, severity_ratio, informative)) in enumerate(
            zip(points, judgements, strict=True)
        )
    ]
    within_limits = [cut for cut in cuts if cut.limit_status is LimitStatus.WITHIN]
    if within_limits:
        chosen = min(within_limits, key=lambda cut: (cut.point.state_bytes, cut.severity))
        share = 100 * chosen.point.state_bytes / original.state_bytes
        reason = f"the smallest state within the limits, {share:.0f}% of the original's"
        return Recommendation(cuts, chosen, reason)
    if all(cut.limit_status is LimitStatus.UNCLEAR for cut in cuts):
        return Recommendation(cuts, None, "too few samples, or too few tasks, to tell")
    closest = min(cuts, key=lambda cut: cut.severity)
    reason_text = f": {loss_text(closest.worst)}" if closest.worst else ""
    reason = f"no shape is within the limits; {closest.shape} comes nearest{reason_text}"
    return Recommendation(cuts, None, reason)


def point_losses(original: Point, point: Point) -> list[Loss]:
    """What each task is judged by, and its settings, as losses against the original."""
    losses = []
    for name, after in point.scores.items():
        before, (task, _, metric) = original.scores.get(name), name.partition(" ")
        if before is None or not all(is_number(x.value) for x in (before, after)):
            continue
        definition = TASKS.get(task)
        counted = definition is None or metric == definition.metric or _is_setting(task, metric)
        if counted and after.unit in ("share", "perplexity", "nats"):
            loss = _loss_interval(before, after)
            figures = (before.value, after.value, 0)
            losses.append(
                Loss(
                    f"{point.keep}x{point.keep_values}",
                    task,
                    metric,
                    after.unit,  # type: ignore[arg-type]
                    *figures,
                    loss,
                    None,
                    bool(before.floor),
                )
            )
    return losses


def _judge_point(original: Point, point: Point) -> tuple[LimitStatus, float, list[Loss]]:
    """How a point stands, its severity, and the losses that say something, the worst first."""
    informative = [
        x
        for x in point_losses(original, point)
        if not x.uninformative and ship_limit(x) is not None
    ]
    main = [x for x in informative if not _is_setting(x.task, x.metric)]
    main.sort(key=severity, reverse=True)
    severity_ratio = severity(main[0]) if main else 0.0
    setting = worst_setting([x for x in informative if _is_setting(x.task, x.metric)])
    if setting is not None:
        return LimitStatus.BEYOND, max(severity_ratio, severity(setting)), [setting, *main]
    statuses = {compare_with_limit(x.loss, ship_limit(x) or 0.0) for x in main}
    if LimitStatus.BEYOND in statuses:
        return LimitStatus.BEYOND, severity_ratio, main
    missing = any(not any(group in x.groups for x in main) for group in REQUIRED_GROUPS)
    if missing or LimitStatus.UNCLEAR in statuses:
        return LimitStatus.UNCLEAR, severity_ratio, main
    return LimitStatus.WITHIN, severity_ratio, main


def _is_on_frontier(
    number: int,
    points: Sequence[Point],
    judgements: Sequence[tuple[LimitStatus, float, list[Loss]]],
) -> bool:
    """Whether no other point is as small and as good, and better in one of both."""
    size, severity_ratio = points[number].state_bytes, judgements[number][1]
    return not any(
        other.state_bytes <= size
        and judgement[1] <= severity_ratio
        and (other.state_bytes < size or judgement[1] < severity_ratio)
        for other, judgement in zip(points, judgements, strict=True)
    )


def _loss_interval(before: SweepScore, after: SweepScore) -> Interval:
    ends = [after.low, after.value, after.high]
    if not (is_number(after.low) and is_number(after.high)):
        estimate = _loss_in_report_unit(before.value, after.value, after.unit)
        return Interval(estimate, estimate - UNBOUNDED_MARGIN, estimate + UNBOUNDED_MARGIN)
    low, estimate, high = (
        _loss_in_report_unit(before.value, float(end or 0.0), after.unit) for end in ends
    )
    return Interval(estimate, min(low, high), max(low, high))


def _loss_in_report_unit(before: float, after: float, unit: str) -> float:
    """A loss in the unit in which losses are told."""
    if unit == "perplexity":
        return 100 * (after / before - 1) if before else 0.0
    return 100 * (before - after) if unit == "share" else after - before


def _is_setting(task: str, metric: str) -> bool:
    definition = TASKS.get(task)
    return bool(definition and definition.settings and metric.startswith(definition.settings))
