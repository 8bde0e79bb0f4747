"""What a person sees while `trim` runs."""

from collections.abc import Sequence
from contextlib import AbstractContextManager

from ...pipelines.estimate import Step
from ...pipelines.stage import Observer
from ...progress import OnProgress
from .. import terminal
from ..progress import show_progress


class TerminalObserver(Observer):
    """Prints a line per stage to standard error, and a progress bar for long stages."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.started: set[str] = set()
        self.cached: set[str] = set()
        self.steps = [step.name for step in steps]
        self.number = 1  # of the running step

    def on_step(self, step: str) -> None:
        if step in self.steps:  # what an earlier one makes again belongs to the one that needs it
            self.number = max(self.number, self.steps.index(step) + 1)

    def on_start(self, stage: str) -> None:
        self.started.add(stage)
        terminal.note(f"step {self.number} of {len(self.steps)}: {stage}")

    def on_cached(self, stage: str) -> None:
        if stage not in self.started | self.cached:
            terminal.note(f"{stage}: already done")
        self.cached.add(stage)

    def on_message(self, sentence: str) -> None:
        terminal.note(sentence)

    def progress(self, label: str) -> AbstractContextManager[OnProgress]:
        return show_progress(label)
