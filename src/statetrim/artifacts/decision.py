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


LOSS_TIE_NATS = 1e-3
"""Nats per token; losses that differ by less are a tie, which the larger state wins."""


@dataclass(frozen=True)
class Candidate:
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
    measured: Sequence[Candidate]

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


def decide(
    measured: Sequence[Candidate], prediction: Prediction, refused: Mapping[str, Sequence[str]]
) -> Decision:
    """Choose the lowest loss among the candidates whose recall is no worse than the best.

    Recall is no worse if its interval reaches the best candidate's recall. Of losses within
    LOSS_TIE_NATS the largest state wins.
    """
    best_recall = max((x.recall.estimate for x in measured if x.recall), default=0.0)
    eligible = [x for x in measured if x.recall is None or x.recall.high >= best_recall]
    lowest_loss = min(x.loss.estimate for x in eligible)
    tied = [x for x in eligible if x.loss.estimate < lowest_loss + LOSS_TIE_NATS]
    chosen = max(tied, key=lambda x: (x.share, -x.loss.estimate))
    return Decision(
        chosen.name,
        _decision_text(chosen, measured, eligible, tied),
        {name: prediction.cost(name) for name in prediction.ranked},
        dict(refused),
        list(measured),
    )


def _decision_text(
    chosen: Candidate,
    measured: Sequence[Candidate],
    eligible: Sequence[Candidate],
    tied: Sequence[Candidate],
) -> str:
    recall = ""
    if chosen.recall is not None:
        recall = f" and recall loss {-chosen.recall.estimate:+.1f} points"
    reason = "its loss is the lowest"
    if len(measured) == 1:
        reason = "no other shape fits"
    elif len(eligible) < len(measured):
        worse = [x.name for x in measured if x not in eligible]
        verb = "recall less" if len(worse) > 1 else "recalls less"
        reason += f" of those that recall no worse ({' and '.join(worse)} {verb})"
    if len(tied) > 1:
        reason = f"of {len(tied)} shapes with the same loss it has the largest state"
    return (
        f"{chosen.name} ({chosen.share:.0%} of the state): loss {chosen.loss.estimate:+.4f} nats"
        f"{recall}; {reason}"
    )
