"""What a long run of several stages tells of itself."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

from ..progress import OnProgress, ShowProgress, ignore_progress, progress_reporter
from ..recovery.adapters import Coverage


class Observer:
    """Silent; the command line has one that writes to the terminal."""

    def on_step(self, step: str) -> None:
        """The step of the estimate to which the stages that follow belong."""

    def on_start(self, stage: str) -> None:
        """A stage starts."""

    def on_cached(self, stage: str) -> None:
        """A stage was finished by an earlier run."""

    def on_message(self, sentence: str) -> None:
        """What a stage found."""

    def announce(self, coverage: Coverage) -> None:
        """What a recovery trains."""

    def progress(self, label: str) -> AbstractContextManager[OnProgress]:
        """What a long stage reports to."""
        return nullcontext(ignore_progress)


class ProgressObserver(Observer):
    """Every stage that takes long reports to `to`, or to a bar of its own."""

    def __init__(self, show_progress: ShowProgress) -> None:
        self.show_progress = show_progress

    @contextmanager
    def progress(self, label: str) -> Iterator[OnProgress]:
        with progress_reporter(self.show_progress, label) as report:
            yield lambda told: report(replace(told, label=told.label or label))
