"""What a long run of several stages tells of itself."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

from ..progress import OnProgress, ShowProgress, ignore, showing
from ..recovery.adapters import Coverage


class Watch:
    """Silent; the command line has one that writes to the terminal."""

    def enters(self, step: str) -> None:
        """The step of the estimate to which the stages that follow belong."""

    def begins(self, stage: str) -> None:
        """A stage starts."""

    def kept(self, stage: str) -> None:
        """A stage was finished by an earlier run."""

    def tells(self, sentence: str) -> None:
        """What a stage found."""

    def announce(self, coverage: Coverage) -> None:
        """What a recovery trains."""

    def progress(self, label: str) -> AbstractContextManager[OnProgress]:
        """What a long stage reports to."""
        return nullcontext(ignore)


class Reported(Watch):
    """Every stage that takes long reports to `to`, or to a bar of its own."""

    def __init__(self, to: ShowProgress) -> None:
        self.to = to

    @contextmanager
    def progress(self, label: str) -> Iterator[OnProgress]:
        with showing(self.to, label) as report:
            yield lambda told: report(replace(told, label=told.label or label))
