"""When the learning rate rises, when held-out recall is measured, and when training stops by it."""

from collections.abc import Sequence
from math import ceil

CHECKS = 20  # during a run, in addition to the one before it


def warm_up_steps(fraction: float, steps: int) -> int:
    """The steps in which the learning rate rises, rounded up as in transformers."""
    return ceil(fraction * steps)


def is_check_due(step: int, steps: int) -> bool:
    """Whether to measure after `step`: about 20 times in `steps`, and at the end."""
    return step % max(1, steps // CHECKS) == 0 or step == steps


def has_stalled(scores: Sequence[float], patience: int) -> bool:
    """Whether none of the last `patience` scores is above the best before them. False if
    `patience` is 0, or if there are no scores before them."""
    if not patience or len(scores) <= patience:
        return False
    return max(scores[-patience:]) <= max(scores[:-patience])
