"""What a long run of several stages tells of itself."""

from contextlib import AbstractContextManager, nullcontext

from ..progress import OnProgress, ignore
from ..recovery.adapters import Coverage


class Watch:
    """Silent; the command line has one that writes to the terminal."""

    def begins(self, stage: str) -> None:
        """A stage starts."""

    def kept(self, stage: str) -> None:
        """A stage was finished by an earlier run."""

    def announce(self, coverage: Coverage) -> None:
        """What a recovery trains."""

    def progress(self, label: str) -> AbstractContextManager[OnProgress]:
        """What a long stage reports to."""
        return nullcontext(ignore)
