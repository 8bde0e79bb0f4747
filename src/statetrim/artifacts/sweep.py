"""Sweep: scores and state bytes, a point per shape that was measured."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..maths.formatting import list_text, shorten
from ..maths.units import MIB
from .record import read_artifact, write_artifact

_MAX_BYTES = 16 * MIB


@dataclass(frozen=True)
class SweepScore:
    """A metric of one cut. The 95% interval is that of the paired difference to the original, added
    to the original's value; the original itself has none."""

    value: float
    low: float | None
    high: float | None
    unit: str
    higher_is_better: bool
    floor: bool = False  # uninformative: the original is not significantly above chance


@dataclass(frozen=True)
class Point:
    """One shape: its state bytes per sequence and its scores."""

    keep: int
    keep_values: int
    method: str  # "none" for the original
    state_bytes: int  # per sequence, float32
    scores: Mapping[str, SweepScore]  # by "task metric"

    def check(self) -> None:
        """Raise ValueError if an untrusted file states a size that no shape has."""
        for name in ("keep", "keep_values", "state_bytes"):
            if not 0 < getattr(self, name) < 2**63:
                raise ValueError(f"{name} must be positive and below 2^63")


@dataclass(frozen=True)
class Sweep:
    """The scores of a sweep: the original first, then every cut."""

    model: str
    points: list[Point]
    lineage: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        shapes = (f"{point.keep} x {point.keep_values}" for point in self.points)
        return f"<Sweep of {shorten(self.model)}: {list_text(shapes, 8)}>"

    def save(self, path: str | Path) -> None:
        write_artifact(path, "sweep", self)

    @staticmethod
    def load(path: str | Path) -> "Sweep":
        """Read an untrusted file; raises StatetrimError if it is damaged."""
        return read_artifact(path, "sweep", Sweep, _MAX_BYTES)

    def check(self) -> None:
        """Raise ValueError if an untrusted file lists no point."""
        if not self.points:
            raise ValueError("points is empty")
