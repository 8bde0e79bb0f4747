"""What a long run of several stages tells of itself."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any


class Watch:
    """Silent; the command line has one that speaks."""

    def begins(self, stage: str) -> None:
        """A stage starts."""

    def kept(self, stage: str) -> None:
        """A stage was finished by an earlier run."""

    def tokens(self, label: str) -> AbstractContextManager[Callable[[int, int], None]]:
        return nullcontext(lambda done, total: None)

    def bytes(self, label: str, total: int) -> AbstractContextManager[Callable[[int], None]]:
        return nullcontext(lambda count: None)

    def training(self) -> AbstractContextManager[tuple[Callable[..., None], Callable[..., None]]]:
        return nullcontext((lambda coverage: None, lambda moment: None))

    def tasks(self) -> AbstractContextManager[Callable[[str, str, int, int], None]]:
        return nullcontext(lambda model, task, done, total: None)

    def layers(self, label: str) -> Callable[[Any], Any]:
        return iter
