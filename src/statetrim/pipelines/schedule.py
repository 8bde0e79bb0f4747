"""Time left of a run: the estimates of its steps, corrected by the time finished steps took."""

import time
from collections.abc import Callable, Sequence

from .estimate import Step

_SINGLE_BAR_STEPS = ("calibrate", "predict", "sensitivity", "recover")
"""Steps with one progress bar from start to end, from which their time can be extrapolated."""
_FIXED_TIME_STEPS = ("report",)
"""Steps that take as long on every model, so that estimates of other steps do not correct them."""
_MIN_PROGRESS = 0.02  # fraction of a bar before a step's time is extrapolated from it


class Schedule:
    """Follows the steps of a run in order; cached steps do not correct the estimates."""

    def __init__(self, steps: Sequence[Step], clock: Callable[[], float] = time.monotonic) -> None:
        self.estimated = {step.name: step.seconds for step in steps}
        self.step_names = list(self.estimated)
        self.clock, self.start = clock, clock()
        self.measured: dict[str, float] = {}
        self.position = -1  # index in `step_names` of the running step
        self.step_start = self.start
        self.first_fraction: float | None = None  # of the running step's bar at its first report
        self.timing_is_complete = True

    def start_step(self, step: str) -> bool:
        """Start a step and return True; False for an unknown, repeated or earlier step, whose
        time counts to the running one."""
        position = self.step_names.index(step) if step in self.estimated else -1
        if position <= self.position:
            return False
        now = self.clock()
        if self.position >= 0 and self.timing_is_complete:
            self.measured[self.step_names[self.position]] = now - self.step_start
        self.position, self.step_start = position, now
        self.first_fraction, self.timing_is_complete = None, True
        return True

    def mark_cached(self) -> None:
        """An earlier run did a part of the running step, so its time corrects no estimate."""
        self.timing_is_complete = False

    def seconds_left(self, fraction: float | None = None) -> float:
        """Seconds until the run ends; `fraction` is the progress of the running step's bar. In a
        step with a single bar it is recorded; after 2 % it replaces the estimate of this step and
        corrects those of the others."""
        if self.position < 0:
            return sum(self.estimated.values())
        name, elapsed = self.step_names[self.position], self.clock() - self.step_start
        remaining = max(0.0, self._corrected_seconds(name) - elapsed)
        if fraction is not None and name in _SINGLE_BAR_STEPS:
            if self.first_fraction is None:  # a resumed bar does not start at 0
                self.first_fraction, self.step_start, elapsed = fraction, self.clock(), 0.0
                self.timing_is_complete = self.timing_is_complete and fraction < _MIN_PROGRESS
            if fraction - self.first_fraction > _MIN_PROGRESS:
                step_seconds = elapsed / (fraction - self.first_fraction)
                self.measured[name], remaining = step_seconds, step_seconds * (1 - fraction)
        return remaining + sum(
            self._corrected_seconds(step) for step in self.step_names[self.position + 1 :]
        )

    def fraction_done(self, seconds_left: float) -> float:
        """Fraction of the run's time that has passed, if `seconds_left` remain."""
        elapsed = self.clock() - self.start
        return elapsed / (elapsed + seconds_left) if seconds_left else 1.0

    def _corrected_seconds(self, step: str) -> float:
        """Estimated seconds of a step, times measured over estimated seconds of those that were
        timed."""
        estimated = sum(self.estimated[name] for name in self.measured)
        if step in _FIXED_TIME_STEPS or not estimated:
            return self.estimated[step]
        return self.estimated[step] * (sum(self.measured.values()) / estimated)
