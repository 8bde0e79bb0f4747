"""When to look at recall sequences that are not trained on, and when that says to stop."""

from collections.abc import Sequence

CHECKS = 20  # in a run, besides the one before it


def is_check_due(step: int, steps: int) -> bool:
    """Whether to measure after `step` of `steps`."""
    return step % max(1, steps // CHECKS) == 0 or step == steps


def has_stalled(scores: Sequence[float], patience: int) -> bool:
    """Whether the last `patience` figures bring nothing above the best before them."""
    if not patience or len(scores) <= patience:
        return False
    return max(scores[-patience:]) <= max(scores[:-patience])
