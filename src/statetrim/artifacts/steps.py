"""The records in which prune, refit, recover and trim write what they did; they are untrusted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from ..errors import StatetrimError
from ..storage.checkpoint import Checkpoint, path_inside
from ..storage.output import ARTIFACTS
from .record import Artifact, parse_record


@dataclass(frozen=True)
class DataSource:
    """Sequences that a step read: those of a text after its first `skip` tokens, or generated."""

    count: int
    length: int
    digest: str = ""
    text: str | None = None
    skip: int = 0
    generated: str | None = None

    @property
    def tokens(self) -> int:
        return self.count * self.length

    def check(self) -> None:
        """Raise ValueError for sizes that no text has."""
        if not (1 <= self.count < 2**31 and 2 <= self.length < 2**31 and self.skip >= 0):
            raise ValueError("count, length and skip must be sizes of a text")


def data_sources(lineage: Any) -> list[DataSource]:
    """The sources in the lineage of statistics; empty if it has none. Invalid ones are left out."""
    entries = lineage.get("data") if isinstance(lineage, Mapping) else None
    sources = []
    for entry in entries if isinstance(entries, list) else []:
        try:
            sources.append(parse_record(entry, DataSource, "data"))
        except StatetrimError:
            continue
    return sources


@dataclass(frozen=True)
class StepRecord(Artifact):
    """What the record of any step states: the version of statetrim, and the digest of the model."""

    statetrim: str = ""
    source: str | None = None

    @classmethod
    def of_model(cls, model: Checkpoint) -> Self:
        """The record that a checkpoint carries; an empty one if it is missing or damaged."""
        name = f"{ARTIFACTS}/{cls.KIND}.json"
        try:
            return cls.load(path_inside(model.path, name))
        except StatetrimError:
            return cls()


@dataclass(frozen=True)
class PruneRecord(StepRecord):
    """What prune.json states: the relative error of each tensor that was quantised again, by
    name."""

    KIND = "prune"

    requantized: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class RefitRecord(StepRecord):
    """What refit.json states: the errors by layer, and the lineage of the statistics."""

    KIND = "refit"

    layers: dict[str, dict[str, float]] = field(default_factory=dict)
    statistics: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RecoverRecord(StepRecord):
    """What recover.json states: options, losses by step, and the names of the trained tensors."""

    KIND = "recover"

    student: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    text: str | None = None
    data: dict[str, Any] = field(default_factory=dict)
    coverage: dict[str, Any] = field(default_factory=dict)
    curve: Sequence[dict[str, float | None]] = ()
    held_out: Sequence[dict[str, float | None]] = ()
    trained_tensors: Sequence[str] = ()


@dataclass(frozen=True)
class TrimRecord(StepRecord):
    """What trim.json states. The text before `measured_from` also served to choose a shape."""

    KIND = "trim"

    text: str | None = None
    tokens: int = 0
    measured_from: int = 0
    recipe: dict[str, Any] | None = None
    checks: dict[str, Any] = field(default_factory=dict)
    warnings: Sequence[str] = ()
