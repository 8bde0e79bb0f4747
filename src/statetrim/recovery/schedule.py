"""When the learning rate rises, and when layerwise recovery measures held-out recall."""

from math import ceil

CHECKS = 20  # during a run, in addition to the one before it


def warm_up_steps(fraction: float, steps: int) -> int:
    """The steps in which the learning rate rises, rounded up as in transformers."""
    return ceil(fraction * steps)


def is_check_due(step: int, steps: int) -> bool:
    """Whether to measure after `step`: about 20 times in `steps`, and at the end."""
    return step % max(1, steps // CHECKS) == 0 or step == steps
