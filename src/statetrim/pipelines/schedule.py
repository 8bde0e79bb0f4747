"""How much of a run is left: the estimate of its steps, corrected by what finished ones took."""

import time
from collections.abc import Callable, Sequence

from .estimate import Step

_ONE_BAR = ("calibrate", "predict", "recover")
"""Steps that are one bar from begin to end: how far it is tells when they end."""
_FIXED = ("report",)
"""Steps that take the same on every model, so that what others took says nothing of them."""
_ENOUGH = 0.02  # of a bar, before a step's time is told from it


class Schedule:
    """The steps of a run, in order; those that an earlier run finished teach nothing."""

    def __init__(self, steps: Sequence[Step], clock: Callable[[], float] = time.monotonic) -> None:
        self.estimated = {step.name: step.seconds for step in steps}
        self.order = list(self.estimated)
        self.clock, self.start = clock, clock()
        self.took: dict[str, float] = {}
        self.place = -1  # in `order`, of the step that is at work
        self.began = self.start
        self.first: float | None = None  # share of the bar at its first report
        self.whole = True

    def enters(self, step: str) -> bool:
        """Whether a step begins; one that comes again, or an earlier one, is part of this one."""
        place = self.order.index(step) if step in self.estimated else -1
        if place <= self.place:
            return False
        now = self.clock()
        if self.place >= 0 and self.whole:
            self.took[self.order[self.place]] = now - self.began
        self.place, self.began, self.first, self.whole = place, now, None, True
        return True

    def keeps(self) -> None:
        """A part of this step was done by an earlier run, so its time says nothing."""
        self.whole = False

    def left(self, share: float | None = None) -> float:
        """Seconds until the end; `share` is how far the bar of the step at work is."""
        if self.place < 0:
            return sum(self.estimated.values())
        name, elapsed = self.order[self.place], self.clock() - self.began
        here = max(0.0, self._corrected(name) - elapsed)
        if share is not None and name in _ONE_BAR:
            if self.first is None:  # a resumed run begins somewhere
                self.first, self.began, elapsed = share, self.clock(), 0.0
                self.whole = self.whole and share < _ENOUGH
            if share - self.first > _ENOUGH:
                whole = elapsed / (share - self.first)
                self.took[name], here = whole, whole * (1 - share)
        return here + sum(self._corrected(step) for step in self.order[self.place + 1 :])

    def done(self, left: float) -> float:
        """The part of the whole time that is over."""
        elapsed = self.clock() - self.start
        return elapsed / (elapsed + left) if left else 1.0

    def _corrected(self, step: str) -> float:
        return self.estimated[step] * (1.0 if step in _FIXED else self._scale)

    @property
    def _scale(self) -> float:
        """What steps took, compared with the estimate."""
        estimated = sum(self.estimated[name] for name in self.took)
        return sum(self.took.values()) / estimated if estimated else 1.0
