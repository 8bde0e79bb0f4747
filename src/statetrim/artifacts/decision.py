"""Which shape a state was cut to, and why: predicted errors and measured losses by shape."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from pathlib import Path

from ..maths.paired import Interval
from ..maths.units import MIB
from .record import read_artifact, write_artifact

_MAX_BYTES = 64 * MIB
_SMALLEST_ERROR = 1e-9
_MAX_TEXT_LENGTH = 2000

Errors = Mapping[str, Mapping[int, float]]
"""Source -> layer -> relative residual sum of squares of the layer's output after a refit, on
held-out data."""


@dataclass(frozen=True)
class Prediction:
    """Predicted errors of cuts by their shape (such as `64x64`), before one is made."""

    errors: Mapping[str, Errors]

    def cost(self, name: str) -> float:
        """The mean error over layers, then the geometric mean over sources, so that a source with
        small errors, such as plain text, counts as much as one with large errors."""
        log_means = []
        for by_layer in self.errors[name].values():
            mean = sum(by_layer.values()) / len(by_layer)
            log_means.append(log(max(mean, _SMALLEST_ERROR)))
        return exp(sum(log_means) / len(log_means))

    @property
    def ranked(self) -> list[str]:
        """The shapes by their cost, lowest first."""
        return sorted(self.errors, key=self.cost)

    def save(self, path: Path) -> None:
        write_artifact(path, "prediction", self)

    @staticmethod
    def load(path: Path) -> "Prediction":
        """Read an untrusted file; raises StatetrimError if it is damaged."""
        return read_artifact(path, "prediction", Prediction, _MAX_BYTES)

    def check(self) -> None:
        """Raise ValueError if an untrusted file lacks the errors of a shape, source or layer."""
        if not self.errors:
            raise ValueError("errors is empty")
        for name, sources in self.errors.items():
            if not sources or not all(sources.values()):
                raise ValueError(f"errors of {name} are missing")


@dataclass(frozen=True)
class MeasuredShape:
    """A shape that was measured: its changes of loss and recall, paired with the original."""

    name: str
    share: float  # bytes of the state over those of the original
    loss: Interval  # nats per token; higher is worse
    recall: Interval | None  # points; lower is worse; None if the original recalls nothing


@dataclass(frozen=True)
class Decision:
    """The chosen shape, why it was chosen, and the figures for every shape."""

    chosen: str
    sentence: str
    predicted: Mapping[str, float]  # cost by shape, lowest first
    refused: Mapping[str, Sequence[str]]  # shape -> engines that do not serve it
    measured: Sequence[MeasuredShape]

    def save(self, path: Path) -> None:
        write_artifact(path, "decision", self)

    @staticmethod
    def load(path: Path) -> "Decision":
        """Read an untrusted file; raises StatetrimError if it is damaged."""
        return read_artifact(path, "decision", Decision, _MAX_BYTES)

    def check(self) -> None:
        """Raise ValueError if an untrusted file chose an unknown shape, or says too much."""
        if self.chosen not in self.predicted:
            raise ValueError("chosen is none of the predicted shapes")
        if len(self.sentence) > _MAX_TEXT_LENGTH:
            raise ValueError(f"sentence is longer than {_MAX_TEXT_LENGTH} characters")
