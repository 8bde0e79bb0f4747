"""Measured shapes -> the recommended one: the rule of every comparison of shapes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..artifacts.decision import MeasuredShape
from ..artifacts.scores import Scores
from .limits import LimitStatus, limit_status, limited_losses, loss_text, metric_label, severity
from .losses import Loss, setting_losses, task_losses
from .verdict import REQUIRED_GROUPS

_SIZE_STEPS = 8
"""Sizes are compared in eighths of the original's state; smaller differences are a tie."""


@dataclass(frozen=True)
class JudgedCut:
    """One measured shape, compared with the limits of the verdict."""

    point: MeasuredShape
    share: float  # of the bytes of the original's state
    limit_status: LimitStatus
    severity: float  # the worst ratio of a loss to its limit in each group of tasks, added up
    losses: Sequence[Loss]  # of informative tasks, the worst first

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


def recommend(points: Sequence[MeasuredShape], scores: Mapping[str, Scores]) -> Recommendation:
    """Choose the smallest state within the limits of the verdict, of equal sizes the one that loses
    least; if none is within the limits, the one that comes nearest to them in sum.

    `scores` are by shape, of the original and of the cut, in this order. The original is the first
    point without a method; another is the original with fewer bits per number, which is compared
    but not chosen. There are no random cuts to compare with, so this is no verdict.
    """
    original = next((point for point in points if point.method == "none"), None)
    others = [point for point in points if point is not original and str(point) in scores]
    if original is None or all(point.method == "none" for point in others):
        return Recommendation([], None, "no shape was measured together with the original")
    cuts = [judge_point(original, point, scores[str(point)]) for point in others]
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


def judge_point(original: MeasuredShape, point: MeasuredShape, scores: Scores) -> JudgedCut:
    """Compare the losses of a cut with their limits."""
    cut = scores.models[-1]
    losses = limited_losses([*task_losses(scores, cut), *setting_losses(scores, cut)])
    share = point.state_bytes / original.state_bytes
    worst: dict[str, float] = {}
    for x in losses:  # the worst first
        worst.setdefault(x.group, max(severity(x), 0.0))
    return JudgedCut(point, share, _status_of_losses(losses), sum(worst.values()), losses)


def _status_of_losses(losses: Sequence[Loss]) -> LimitStatus:
    """The worst status; unclear if a required group of tasks is missing."""
    statuses = {limit_status(x) for x in losses}
    groups = {x.group for x in losses}
    if LimitStatus.BEYOND in statuses:
        return LimitStatus.BEYOND
    if LimitStatus.UNCLEAR in statuses or not groups.issuperset(REQUIRED_GROUPS):
        return LimitStatus.UNCLEAR
    return LimitStatus.WITHIN
