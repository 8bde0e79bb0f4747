"""Sweep: scores and state bytes, a point per shape that was measured."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import StatetrimError
from ..maths.formatting import list_text, shorten
from ..maths.units import MIB, is_integer_list, is_number
from ..storage.json_file import read_json, write_json
from .header import check_header, header

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
        """Write a JSON file atomically, replacing an existing one."""
        write_json(Path(path), {**header("sweep"), **asdict(self)})

    @staticmethod
    def load(path: str | Path) -> "Sweep":
        """Read an untrusted file; raises StatetrimError if it is damaged."""
        stored = read_json(Path(path), _MAX_BYTES)
        check_header(stored, "sweep", path)
        try:
            points = [_parse_point(fields) for fields in stored["points"]]
            if not points:
                raise ValueError
            return Sweep(str(stored["model"]), points, dict(stored["lineage"]))
        except (KeyError, TypeError, AttributeError, ValueError):
            raise StatetrimError(f"{path} is not what a sweep writes") from None


def _parse_point(fields: Any) -> Point:
    """One point from untrusted JSON; raises ValueError or TypeError if a field is not valid."""
    scores = {name: _parse_score(stored) for name, stored in fields["scores"].items()}
    point = Point(**fields | {"scores": scores})
    sizes = [point.keep, point.keep_values, point.state_bytes]
    if not is_integer_list(sizes) or min(sizes) <= 0 or max(sizes) >= 2**63:
        raise ValueError
    if not isinstance(point.method, str):
        raise ValueError
    return point


def _parse_score(stored: Any) -> SweepScore:
    """From untrusted JSON; raises ValueError or TypeError if a field is not valid."""
    score = SweepScore(**stored)
    for bound in (score.low, score.high):
        if bound is not None and not is_number(bound):
            raise ValueError
    flags_valid = isinstance(score.higher_is_better, bool) and isinstance(score.floor, bool)
    if not flags_valid or not is_number(score.value) or not isinstance(score.unit, str):
        raise ValueError
    return score
