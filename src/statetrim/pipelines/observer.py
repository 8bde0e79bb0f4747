"""Callbacks of a run of several stages."""

from contextlib import AbstractContextManager, nullcontext

from ..progress import OnProgress, ShowProgress, ignore_progress, progress_reporter


class Observer:
    """Ignores every event; the command line has a subclass that writes to the terminal."""

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
        return nullcontext(ignore_progress)


class ProgressObserver(Observer):
    """Shows the progress of long stages: to a function, as a bar (True), or not (False)."""

    def __init__(self, show_progress: ShowProgress) -> None:
        self.show_progress = show_progress

    def progress(self, label: str) -> AbstractContextManager[OnProgress]:
        return progress_reporter(self.show_progress, label)
