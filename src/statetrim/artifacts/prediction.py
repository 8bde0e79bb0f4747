"""What cuts would cost, before one is made: how much of each layer's output they would miss."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, isfinite, log
from pathlib import Path
from typing import Any

from ..errors import StatetrimError
from ..maths.units import MIB
from ..storage.json_file import read_object, write_object

FORMAT, VERSION = "statetrim prediction", 1
_MOST_BYTES = 64 * MIB
_NEXT_TO_NOTHING = 1e-9

Errors = Mapping[str, Mapping[int, float]]
"""Source -> layer -> part of the layer's output missed after a refit, in squares, on new data."""


@dataclass(frozen=True)
class Prediction:
    """Errors of every candidate, by its name (such as `64x64`)."""

    errors: Mapping[str, Errors]

    def cost(self, name: str) -> float:
        """Mean over layers, then the geometric mean over sources: a source on which errors are
        small, as they are on plain text, counts as much as one on which they are large."""
        means = [
            max(sum(layers.values()) / len(layers), _NEXT_TO_NOTHING)
            for layers in self.errors[name].values()
        ]
        return exp(sum(map(log, means)) / len(means))

    @property
    def ranked(self) -> list[str]:
        """Cheapest first."""
        return sorted(self.errors, key=self.cost)

    def save(self, path: Path) -> None:
        errors = {
            name: {source: {str(i): e for i, e in layers.items()} for source, layers in of.items()}
            for name, of in self.errors.items()
        }
        write_object(path, {"format": FORMAT, "version": VERSION, "errors": errors})

    @staticmethod
    def load(path: Path) -> "Prediction":
        stored = read_object(path, _MOST_BYTES)
        if (stored.get("format"), stored.get("version")) != (FORMAT, VERSION):
            raise StatetrimError(f"{path} does not hold a prediction of format version {VERSION}")
        try:
            errors = {
                name: {s: {int(i): _error(e) for i, e in of.items()} for s, of in sources.items()}
                for name, sources in stored["errors"].items()
            }
            if not errors or not all(s and all(s.values()) for s in errors.values()):
                raise ValueError
        except (KeyError, AttributeError, TypeError, ValueError):
            raise StatetrimError(f"{path} holds errors that cannot be read; remove it") from None
        return Prediction(errors)


def _error(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise ValueError
    return float(value)
