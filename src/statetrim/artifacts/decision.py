"""Which shape a state was cut to, and why: what was predicted of each, what was measured."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import exp, isfinite, log
from pathlib import Path
from typing import Any

from ..errors import StatetrimError
from ..maths.paired import Interval
from ..maths.units import MIB
from ..storage.json_file import read_json, write_json
from .header import check_header, header

_MAX_BYTES = 64 * MIB
_SMALLEST_ERROR = 1e-9
_MAX_TEXT_LENGTH = 2000

Errors = Mapping[str, Mapping[int, float]]
"""Source -> layer -> part of the layer's output missed after a refit, in squares, on new data."""


@dataclass(frozen=True)
class Prediction:
    """What cuts would cost before one is made: errors of each, by its name (such as `64x64`)."""

    errors: Mapping[str, Errors]

    def cost(self, name: str) -> float:
        """Mean over layers, then the geometric mean over sources: a source on which errors are
        small, as they are on plain text, counts as much as one on which they are large."""
        means = [
            max(sum(layers.values()) / len(layers), _SMALLEST_ERROR)
            for layers in self.errors[name].values()
        ]
        return exp(sum(map(log, means)) / len(means))

    @property
    def ranked(self) -> list[str]:
        """Cheapest first."""
        return sorted(self.errors, key=self.cost)

    def save(self, path: Path) -> None:
        errors = {
            name: {
                source: {str(i): e for i, e in layers.items()}
                for source, layers in errors_by_source.items()
            }
            for name, errors_by_source in self.errors.items()
        }
        write_json(path, {**header("prediction"), "errors": errors})

    @staticmethod
    def load(path: Path) -> "Prediction":
        stored = read_json(path, _MAX_BYTES)
        check_header(stored, "prediction", path)
        try:
            errors = {
                name: {
                    s: {int(i): _parse_number(e) for i, e in errors_by_layer.items()}
                    for s, errors_by_layer in sources.items()
                }
                for name, sources in stored["errors"].items()
            }
            if not errors or not all(s and all(s.values()) for s in errors.values()):
                raise ValueError
        except (KeyError, AttributeError, TypeError, ValueError):
            raise StatetrimError(f"{path} holds errors that cannot be read; remove it") from None
        return Prediction(errors)


def _parse_number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise ValueError
    return float(value)


LOSS_TIE_NATS = 1e-3
"""Nats; losses that differ by less are a tie, which the larger state wins."""


@dataclass(frozen=True)
class Candidate:
    """A shape that was measured: its change of loss and of recall, paired with the original."""

    name: str
    share: float  # of the bytes of the original state
    loss: Interval  # nats a token; more is worse
    recall: Interval | None  # points; less is worse; None: the original recalls nothing


@dataclass(frozen=True)
class Decision:
    """The chosen shape, with the evidence."""

    chosen: str
    sentence: str
    predicted: Mapping[str, float]  # cost by shape, cheapest first
    refused: Mapping[str, Sequence[str]]  # engines by shape
    measured: Sequence[Candidate]

    def save(self, path: Path) -> None:
        write_json(path, {**header("decision"), **asdict(self)})

    @staticmethod
    def load(path: Path) -> "Decision":
        stored = read_json(path, _MAX_BYTES)
        check_header(stored, "decision", path)
        try:
            decision = Decision(
                _parse_text(stored["chosen"]),
                _parse_text(stored["sentence"]),
                {
                    _parse_text(name): _parse_number(cost)
                    for name, cost in stored["predicted"].items()
                },
                {
                    name: [_parse_text(e) for e in engines]
                    for name, engines in stored["refused"].items()
                },
                [_parse_candidate(candidate) for candidate in stored["measured"]],
            )
            if decision.chosen not in decision.predicted:
                raise ValueError
        except (KeyError, AttributeError, TypeError, ValueError):
            raise StatetrimError(f"{path} holds a decision that cannot be read") from None
        return decision


def _parse_text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > _MAX_TEXT_LENGTH:
        raise ValueError
    return value


def _parse_candidate(stored: Mapping[str, Any]) -> Candidate:
    recall = stored["recall"]
    return Candidate(
        _parse_text(stored["name"]),
        _parse_number(stored["share"]),
        _parse_interval(stored["loss"]),
        None if recall is None else _parse_interval(recall),
    )


def _parse_interval(stored: Mapping[str, Any]) -> Interval:
    return Interval(*(_parse_number(stored[name]) for name in ("estimate", "low", "high")))


def decide(
    measured: Sequence[Candidate], prediction: Prediction, refused: Mapping[str, Sequence[str]]
) -> Decision:
    """The lowest loss among those whose recall is no worse; a tie goes to the larger state.

    Recall is no worse where its interval reaches the best contender's recall.
    """
    best_recall = max(
        (candidate.recall.estimate for candidate in measured if candidate.recall), default=0.0
    )
    eligible = [
        candidate
        for candidate in measured
        if candidate.recall is None or candidate.recall.high >= best_recall
    ]
    lowest_loss = min(candidate.loss.estimate for candidate in eligible)
    tied = [
        candidate for candidate in eligible if candidate.loss.estimate < lowest_loss + LOSS_TIE_NATS
    ]
    chosen = max(tied, key=lambda candidate: (candidate.share, -candidate.loss.estimate))
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
    recall = (
        "" if chosen.recall is None else f" and recall loss {-chosen.recall.estimate:+.1f} points"
    )
    reason = "its loss is the lowest"
    if len(measured) == 1:
        reason = "no other shape fits"
    elif len(eligible) < len(measured):
        worse = [candidate.name for candidate in measured if candidate not in eligible]
        verb = "recall less" if len(worse) > 1 else "recalls less"
        reason += f" of those that recall no worse ({' and '.join(worse)} {verb})"
    if len(tied) > 1:
        reason = f"of {len(tied)} shapes with the same loss it has the largest state"
    return (
        f"{chosen.name} ({chosen.share:.0%} of the state): loss {chosen.loss.estimate:+.4f} nats"
        f"{recall}; {reason}"
    )
