"""Sweep: quality against state bytes, one point for each shape that was tried."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import StatetrimError
from ..maths.formatting import list_text, shorten
from ..maths.units import MIB, is_number
from ..storage.json_file import read_json, write_json
from .header import check_header, header

_MAX_BYTES = 16 * MIB


@dataclass(frozen=True)
class SweepScore:
    """A metric of one cut with its 95% interval, which follows from the difference to the
    original; the original's own has none."""

    value: float
    low: float | None
    high: float | None
    unit: str
    higher_is_better: bool
    floor: bool = False  # the original is not shown to be above chance: nothing can be lost


@dataclass(frozen=True)
class Point:
    """One shape: what a sequence costs with it, and what the model still does."""

    keep: int
    keep_values: int
    method: str  # "none" for the original
    state_bytes: int  # per sequence, float32
    scores: Mapping[str, SweepScore]  # "task metric" -> what was measured


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
        write_json(Path(path), {**header("sweep"), **asdict(self)})

    @staticmethod
    def load(path: str | Path) -> "Sweep":
        stored = read_json(Path(path), _MAX_BYTES)
        check_header(stored, "sweep", path)
        try:
            points = [
                Point(**{**p, "scores": {name: SweepScore(**m) for name, m in p["scores"].items()}})
                for p in stored["points"]
            ]
            sweep = Sweep(str(stored["model"]), points, dict(stored["lineage"]))
            if points and all(map(_is_valid, points)):
                return sweep
        except (KeyError, TypeError, AttributeError, ValueError):
            pass
        raise StatetrimError(f"{path} is not what a sweep writes")


def _is_valid(point: Point) -> bool:
    """Whether every value is of its kind, and every number one that can be drawn."""
    sizes = (point.keep, point.keep_values, point.state_bytes)
    return (
        all(type(size) is int and 0 < size < 2**63 for size in sizes)
        and isinstance(point.method, str)
        and all(
            is_number(score.value)
            and all(bound is None or is_number(bound) for bound in (score.low, score.high))
            and isinstance(score.unit, str)
            and isinstance(score.higher_is_better, bool)
            and isinstance(score.floor, bool)
            for score in point.scores.values()
        )
    )
