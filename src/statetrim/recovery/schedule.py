"""The course of the learning rate, and when layerwise recovery measures held-out recall."""

from math import ceil

WARM_UP = 0.05  # of the steps, in which the learning rate rises
FINAL_RATE = 0.1  # of the peak, in the last step
CHECKS = 20  # during a run, in addition to the one before it


def warm_up_steps(steps: int) -> int:
    """The steps in which the learning rate rises, rounded up as in transformers."""
    return ceil(WARM_UP * steps)


def is_check_due(step: int, steps: int) -> bool:
    """Whether to measure after `step`: about 20 times in `steps`, and at the end."""
    return step % max(1, steps // CHECKS) == 0 or step == steps
