"""A sweep -> the shape to take: the smallest state whose losses are within the verdict's limits."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..maths.paired import UNKNOWN, Interval
from ..maths.units import is_number
from ..tasks import TASKS
from .losses import Loss
from .sweep import Measured, Point, Sweep
from .verdict import NEEDED, Standing, limit_of, lost, severity, standing, worst_setting


@dataclass(frozen=True)
class Judged:
    """One cut of a sweep."""

    point: Point
    standing: Standing
    severity: float  # the worst loss over its limit
    losses: Sequence[Loss]  # of tasks that say something, the worst first
    frontier: bool  # no other cut is as small and as good

    @property
    def worst(self) -> Loss | None:
        return self.losses[0] if self.losses else None

    @property
    def shape(self) -> str:
        return f"{self.point.keep}x{self.point.keep_values}"


@dataclass(frozen=True)
class Recommendation:
    """Every cut of the sweep, judged; `chosen` is None where none is within the limits."""

    cuts: Sequence[Judged]
    chosen: Judged | None
    reason: str  # a sentence without its full stop

    @property
    def nearest(self) -> Judged | None:
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
    found = [_judge(original, point) for point in points]
    cuts = [
        Judged(point, where, severe, told, _on_frontier(number, points, found))
        for number, (point, (where, severe, told)) in enumerate(zip(points, found, strict=True))
    ]
    fit = [cut for cut in cuts if cut.standing is Standing.WITHIN]
    if fit:
        chosen = min(fit, key=lambda cut: (cut.point.state_bytes, cut.severity))
        share = 100 * chosen.point.state_bytes / original.state_bytes
        reason = f"the smallest state within the limits, {share:.0f}% of the original's"
        return Recommendation(cuts, chosen, reason)
    if all(cut.standing is Standing.UNCLEAR for cut in cuts):
        return Recommendation(cuts, None, "too few samples, or too few tasks, to tell")
    nearest = min(cuts, key=lambda cut: cut.severity)
    why = f": {lost(nearest.worst)}" if nearest.worst else ""
    reason = f"no shape is within the limits; {nearest.shape} comes nearest{why}"
    return Recommendation(cuts, None, reason)


def point_losses(original: Point, point: Point) -> list[Loss]:
    """What each task is judged by, and its settings, as losses against the original."""
    found = []
    for name, after in point.scores.items():
        before, (task, _, metric) = original.scores.get(name), name.partition(" ")
        if before is None or not all(is_number(x.value) for x in (before, after)):
            continue
        known = TASKS.get(task)
        counted = known is None or metric == known.metric or _setting(task, metric)
        if counted and after.unit in ("share", "perplexity", "nats"):
            loss = _loss(before, after)
            figures = (before.value, after.value, 0)
            found.append(
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
    return found


def _judge(original: Point, point: Point) -> tuple[Standing, float, list[Loss]]:
    """How a point stands, its severity, and the losses that say something, the worst first."""
    told = [x for x in point_losses(original, point) if not x.floor and limit_of(x) is not None]
    main = [x for x in told if not _setting(x.task, x.metric)]
    main.sort(key=severity, reverse=True)
    severe = severity(main[0]) if main else 0.0
    setting = worst_setting([x for x in told if _setting(x.task, x.metric)])
    if setting is not None:
        return Standing.BEYOND, max(severe, severity(setting)), [setting, *main]
    standings = {standing(x.loss, limit_of(x) or 0.0) for x in main}
    if Standing.BEYOND in standings:
        return Standing.BEYOND, severe, main
    missing = any(not any(group in x.groups for x in main) for group in NEEDED)
    if missing or Standing.UNCLEAR in standings:
        return Standing.UNCLEAR, severe, main
    return Standing.WITHIN, severe, main


def _on_frontier(
    number: int, points: Sequence[Point], found: Sequence[tuple[Standing, float, list[Loss]]]
) -> bool:
    """Whether no other point is as small and as good, and better in one of both."""
    size, severe = points[number].state_bytes, found[number][1]
    return not any(
        other.state_bytes <= size
        and theirs[1] <= severe
        and (other.state_bytes < size or theirs[1] < severe)
        for other, theirs in zip(points, found, strict=True)
    )


def _loss(before: Measured, after: Measured) -> Interval:
    ends = [after.low, after.value, after.high]
    if not (is_number(after.low) and is_number(after.high)):
        estimate = _told(before.value, after.value, after.unit)
        return Interval(estimate, estimate - UNKNOWN, estimate + UNKNOWN)
    low, estimate, high = (_told(before.value, float(end or 0.0), after.unit) for end in ends)
    return Interval(estimate, min(low, high), max(low, high))


def _told(before: float, after: float, unit: str) -> float:
    """A loss in the unit in which losses are told."""
    if unit == "perplexity":
        return 100 * (after / before - 1) if before else 0.0
    return 100 * (before - after) if unit == "share" else after - before


def _setting(task: str, metric: str) -> bool:
    known = TASKS.get(task)
    return bool(known and known.settings and metric.startswith(known.settings))
