"""What a cut may lose, and how a loss compares with it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ..tasks import TASKS
from .losses import Loss, is_setting


@dataclass(frozen=True)
class Limit:
    """What a group of tasks may lose, in the unit of `Loss.loss`."""

    ship: float  # largest loss to ship
    recoverable: float  # largest loss of which recovery restored most in a measurement
    setting: float  # largest loss on one setting of a task


LIMITS: Mapping[str, Limit] = {
    "perplexity": Limit(ship=3.0, recoverable=10.0, setting=3.0),
    "recall": Limit(ship=3.0, recoverable=25.0, setting=10.0),
    "accuracy": Limit(ship=2.0, recoverable=5.0, setting=10.0),
}
"""Percent of perplexity, points of recall and accuracy. KL from the original has no limit: its
effects show in the other metrics. `recoverable` follows results/recall.md and recovery.md."""


class LimitStatus(StrEnum):
    """How a loss compares with its limit."""

    WITHIN = "within the limit"
    BEYOND = "beyond the limit"
    UNCLEAR = "too wide to tell"


def limit_status(x: Loss) -> LimitStatus | None:
    """Within: the upper end of the interval is at most the limit. Beyond: the lower end is above
    it. Unclear: the limit is between. None: it has no limit."""
    limit = ship_limit(x)
    if limit is None:
        return None
    if x.loss.high <= limit:
        return LimitStatus.WITHIN
    return LimitStatus.BEYOND if x.loss.low > limit else LimitStatus.UNCLEAR


def limited_losses(losses: Sequence[Loss]) -> list[Loss]:
    """The informative losses that have a limit, the worst first."""
    limited = [x for x in losses if not x.uninformative and ship_limit(x) is not None]
    return sorted(limited, key=severity, reverse=True)


def ship_limit(x: Loss) -> float | None:
    """The largest loss to ship, in the unit of the loss; None if it has no limit."""
    limit = LIMITS.get(x.group)
    if limit is None:
        return None
    return limit.setting if is_setting(x.task, x.metric) else limit.ship


def severity(x: Loss) -> float:
    """The ratio of a loss to its limit, above 1 beyond the limit; -1 without a limit."""
    limit = ship_limit(x)
    return x.loss.estimate / limit if limit else -1.0


def loss_text(x: Loss) -> str:
    """A loss and its limit, for people; the loss must have one."""
    verb, suffix = "falls" if x.higher_is_better else "rises", x.unit.suffix
    size = f"{x.loss.estimate:.1f}{suffix}"
    return f"{x.group} {verb} by {size} on {metric_label(x)} (limit {ship_limit(x):g}{suffix})"


def metric_label(x: Loss) -> str:
    """The task, with the setting or metric if it is not the one by which the task is judged."""
    definition = TASKS.get(x.task)
    if definition and x.metric == definition.metric:
        return x.task
    if is_setting(x.task, x.metric):
        return f"{x.task} at {x.setting_name}"
    return f"{x.task}, {x.metric}"
