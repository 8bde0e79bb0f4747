"""Callbacks of a run of several stages."""

from contextlib import AbstractContextManager
from dataclasses import dataclass

from ..progress import OnProgress, ShowProgress, progress_reporter


@dataclass(eq=False)
class Observer:
    """Ignores every event, and shows the progress of long stages: to a function, as a bar (True),
    or not (False). The command line has a subclass that writes to the terminal."""

    show_progress: ShowProgress = False

    def on_step(self, step: str) -> None:
        """The next stages belong to this step."""

    def on_start(self, stage: str) -> None:
        """A stage starts."""

    def on_cached(self, stage: str) -> None:
        """A stage is skipped, because an earlier run finished it."""

    def on_message(self, sentence: str) -> None:
        """A result of a stage, in one sentence."""

    def progress(self, label: str) -> AbstractContextManager[OnProgress]:
        """A context manager that yields the function to which a long stage reports progress."""
        return progress_reporter(self.show_progress, label)
