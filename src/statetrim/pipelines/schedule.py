"""How much of a run is left: the estimate of its steps, corrected by what finished ones took."""

import time
from collections.abc import Callable, Sequence

from .estimate import Step

_SINGLE_BAR_STEPS = ("calibrate", "predict", "recover")
"""Steps that are one bar from begin to end: how far it is tells when they end."""
_FIXED_TIME_STEPS = ("report",)
"""Steps that take the same on every model, so that what others took says nothing of them."""
_MIN_PROGRESS = 0.02  # of a bar, before a step's time is told from it


class Schedule:
    """The steps of a run, in order; those that an earlier run finished teach nothing."""

    def __init__(self, steps: Sequence[Step], clock: Callable[[], float] = time.monotonic) -> None:
        self.estimated = {step.name: step.seconds for step in steps}
        self.step_names = list(self.estimated)
        self.clock, self.start = clock, clock()
        self.measured: dict[str, float] = {}
        self.position = -1  # in `order`, of the step that is at work
        self.step_start = self.start
        self.first_fraction: float | None = None  # share of the bar at its first report
        self.timing_is_complete = True

    def start_step(self, step: str) -> bool:
        """Whether a step begins; one that comes again, or an earlier one, is part of this one."""
        position = self.step_names.index(step) if step in self.estimated else -1
        if position <= self.position:
            return False
        now = self.clock()
        if self.position >= 0 and self.timing_is_complete:
            self.measured[self.step_names[self.position]] = now - self.step_start
        self.position, self.step_start, self.first_fraction, self.timing_is_complete = (
            position,
            now,
            None,
            True,
        )
        return True

    def mark_cached(self) -> None:
        """A part of this step was done by an earlier run, so its time says nothing."""
        self.timing_is_complete = False

    def seconds_left(self, fraction: float | None = None) -> float:
        """Seconds until the end; `share` is how far the bar of the step at work is."""
        if self.position < 0:
            return sum(self.estimated.values())
        name, elapsed = self.step_names[self.position], self.clock() - self.step_start
        remaining = max(0.0, self._corrected_seconds(name) - elapsed)
        if fraction is not None and name in _SINGLE_BAR_STEPS:
            if self.first_fraction is None:  # a resumed run begins somewhere
                self.first_fraction, self.step_start, elapsed = fraction, self.clock(), 0.0
                self.timing_is_complete = self.timing_is_complete and fraction < _MIN_PROGRESS
            if fraction - self.first_fraction > _MIN_PROGRESS:
                step_seconds = elapsed / (fraction - self.first_fraction)
                self.measured[name], remaining = step_seconds, step_seconds * (1 - fraction)
        return remaining + sum(
            self._corrected_seconds(step) for step in self.step_names[self.position + 1 :]
        )

    def fraction_done(self, seconds_left: float) -> float:
        """The part of the whole time that is over."""
        elapsed = self.clock() - self.start
        return elapsed / (elapsed + seconds_left) if seconds_left else 1.0

    def _corrected_seconds(self, step: str) -> float:
        return self.estimated[step] * (1.0 if step in _FIXED_TIME_STEPS else self._correction)

    @property
    def _correction(self) -> float:
        """What steps took, compared with the estimate."""
        estimated = sum(self.estimated[name] for name in self.measured)
        return sum(self.measured.values()) / estimated if estimated else 1.0
