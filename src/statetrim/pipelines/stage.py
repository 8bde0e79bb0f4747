"""A stage makes one artifact; a ledger next to the artifacts names what each was made from.

As in a build system, a finished artifact is used again only if it was made from the same: equal
options, and inputs that were made from the same in turn. Otherwise it is removed and made again,
and with it everything that depends on it. Only for artifacts in a directory that is locked.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from ..options import option_info
from ..progress import OnProgress, ShowProgress, progress_reporter
from ..runtime.corpus import Corpus
from ..storage.atomic import remove
from ..storage.checkpoint import Checkpoint
from ..storage.json_file import read_json, write_json
from ..storage.output import MAX_RECORD_BYTES, finished, partial_path
from .options import PLACEMENT_OPTIONS


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


LEDGER = "lineage.json"

Make = Callable[[OnProgress], Any]
"""Makes the artifact of a stage, and reports its progress."""


@dataclass(frozen=True)
class Stage:
    """How one artifact is made, from `options`, by name, and the artifacts of `inputs`."""

    artifact: Path
    options: Mapping[str, Any]
    make: Make
    inputs: "Sequence[Stage]" = ()
    step: str = ""  # of `steps`
    title: str = ""

    @cached_property
    def lineage(self) -> dict[str, Any]:
        """What the artifact is made from, for a JSON file. It does not depend on its name."""
        inputs = [_digest(stage.lineage) for stage in self.inputs]
        return {"options": _plain(self.options), "inputs": inputs}

    @property
    def is_current(self) -> bool:
        """Whether the artifact is complete and was made from the same."""
        return finished(self.artifact) and self._recorded == self.lineage

    def start(self) -> None:
        """Write down what the artifact is made from, before it is made. One that was made from
        something else is removed, and so is an unfinished one."""
        if self._recorded != self.lineage:
            self.discard()
            self._record(self.lineage)

    def discard(self) -> None:
        """Remove the artifact, if it is in the ledger."""
        if self._recorded is not None:
            self._record({})  # first: a killed process may leave a part of a directory
            remove(self.artifact)
            remove(partial_path(self.artifact))

    def adopt(self, other: "Stage") -> None:
        """Take the artifact of `other`, which was made from the same, if it exists."""
        assert self.lineage == other.lineage
        if self.is_current:
            other.discard()
        elif other.is_current:
            self.start()
            other.artifact.rename(self.artifact)

    def ensure(self, observer: Observer) -> Path:
        """Make the artifact, and first its inputs, unless it is current; returns its path."""
        is_current = self.is_current
        if not is_current:
            for stage in self.inputs:
                stage.ensure(observer)
        observer.on_step(self.step)
        if is_current:
            observer.on_cached(self.title)
            return self.artifact
        self.start()
        observer.on_start(self.title)
        with observer.progress(self.title) as progress:
            self.make(progress)
        return self.artifact

    @property
    def _recorded(self) -> Any:
        """What the ledger says that the artifact was made from; None if it is not there."""
        return _read_ledger(self.artifact.parent).get(self.artifact.name)

    def _record(self, lineage: Mapping[str, Any]) -> None:
        directory = self.artifact.parent
        write_json(directory / LEDGER, _read_ledger(directory) | {self.artifact.name: lineage})


def _read_ledger(directory: Path) -> dict[str, Any]:
    path = directory / LEDGER
    return read_json(path, MAX_RECORD_BYTES) if path.exists() else {}


def _digest(lineage: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(lineage, sort_keys=True).encode()).hexdigest()


def _plain(value: Any) -> Any:
    """A value of an option as JSON. Of an options object: what changes the result, which is all but
    the placement, outputs and callbacks."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Checkpoint):
        return value.digest
    if isinstance(value, Corpus):
        return [str(value.text), value.start, value.size]
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Path) or type(value).__module__ == "torch":  # a device, a dtype
        return str(value)
    record = {}
    for item in fields(value):
        is_input = isinstance(getattr(value, item.name), Checkpoint | Corpus)
        if item.name not in PLACEMENT_OPTIONS and (is_input or option_info(item).in_record):
            record[item.name] = _plain(getattr(value, item.name))
    return record
