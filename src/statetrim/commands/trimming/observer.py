"""What a person sees while `trim` runs."""

from collections.abc import Sequence
from contextlib import AbstractContextManager

from ...pipelines.estimate import Step
from ...pipelines.observer import Observer
from ...pipelines.schedule import Schedule
from ...progress import OnProgress, Progress
from ...progress.bar import RunProgress, time_left_text
from ...recovery.options import Coverage
from .. import terminal
from ..progress import show_progress
from ..steps.recover import show_coverage


class TerminalObserver(Observer):
    """Prints a line per stage to standard error, and a progress bar for long stages."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.started: set[str] = set()
        self.cached: set[str] = set()
        self.schedule = Schedule(steps)
        self.is_new_step = False

    def on_step(self, step: str) -> None:
        self.is_new_step |= self.schedule.start_step(step)

    def on_start(self, stage: str) -> None:
        self.started.add(stage)
        left = ""
        if self.is_new_step:
            left = f"  ({self._step_text}, {time_left_text(self.schedule.seconds_left())})"
        self.is_new_step = False
        terminal.note(f"{stage} ...{left}")

    def on_cached(self, stage: str) -> None:
        self.schedule.mark_cached()
        if stage not in self.started | self.cached:
            terminal.note(f"{stage}: already done")
        self.cached.add(stage)

    def on_message(self, sentence: str) -> None:
        terminal.note(sentence)

    @property
    def _step_text(self) -> str:
        return f"step {self.schedule.position + 1} of {len(self.schedule.step_names)}"

    def _overall(self, progress: Progress) -> RunProgress:
        """Progress of the whole run; the schedule records how far the running step is."""
        left = self.schedule.seconds_left(progress.done / max(1, progress.total))
        return RunProgress(self.schedule.fraction_done(left), self._step_text, left)

    def announce(self, coverage: Coverage) -> None:
        show_coverage(coverage)

    def progress(self, label: str) -> AbstractContextManager[OnProgress]:
        return show_progress(label, self._overall)
