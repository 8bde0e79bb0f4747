"""Which shape a state was cut to, and why: what was predicted of each, what was measured."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import exp, isfinite, log
from pathlib import Path
from typing import Any

from ..errors import StatetrimError
from ..maths.paired import Interval
from ..maths.units import MIB
from ..storage.json_file import read_object, write_object
from .header import check_header, header

_MOST_BYTES = 64 * MIB
_NEXT_TO_NOTHING = 1e-9
_MOST_TEXT = 2000

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
        write_object(path, {**header("prediction"), "errors": errors})

    @staticmethod
    def load(path: Path) -> "Prediction":
        stored = read_object(path, _MOST_BYTES)
        check_header(stored, "prediction", path)
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


SAME_LOSS = 1e-3
"""Nats; losses that differ by less are a tie, which the larger state wins."""


@dataclass(frozen=True)
class Contender:
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
    measured: Sequence[Contender]

    def save(self, path: Path) -> None:
        write_object(path, {**header("decision"), **asdict(self)})

    @staticmethod
    def load(path: Path) -> "Decision":
        stored = read_object(path, _MOST_BYTES)
        check_header(stored, "decision", path)
        try:
            found = Decision(
                _text(stored["chosen"]),
                _text(stored["sentence"]),
                {_text(name): _error(cost) for name, cost in stored["predicted"].items()},
                {name: [_text(e) for e in engines] for name, engines in stored["refused"].items()},
                [_contender(one) for one in stored["measured"]],
            )
            if found.chosen not in found.predicted:
                raise ValueError
        except (KeyError, AttributeError, TypeError, ValueError):
            raise StatetrimError(f"{path} holds a decision that cannot be read") from None
        return found


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > _MOST_TEXT:
        raise ValueError
    return value


def _contender(stored: Mapping[str, Any]) -> Contender:
    recall = stored["recall"]
    return Contender(
        _text(stored["name"]),
        _error(stored["share"]),
        _interval(stored["loss"]),
        None if recall is None else _interval(recall),
    )


def _interval(stored: Mapping[str, Any]) -> Interval:
    return Interval(*(_error(stored[name]) for name in ("estimate", "low", "high")))


def decide(
    measured: Sequence[Contender], prediction: Prediction, refused: Mapping[str, Sequence[str]]
) -> Decision:
    """The lowest loss among those whose recall is no worse; a tie goes to the larger state.

    Recall is no worse where its interval reaches the best contender's recall.
    """
    best = max((one.recall.estimate for one in measured if one.recall), default=0.0)
    kept = [one for one in measured if one.recall is None or one.recall.high >= best]
    lowest = min(one.loss.estimate for one in kept)
    tied = [one for one in kept if one.loss.estimate < lowest + SAME_LOSS]
    chosen = max(tied, key=lambda one: (one.share, -one.loss.estimate))
    return Decision(
        chosen.name,
        _sentence(chosen, measured, kept, tied),
        {name: prediction.cost(name) for name in prediction.ranked},
        dict(refused),
        list(measured),
    )


def _sentence(
    chosen: Contender,
    measured: Sequence[Contender],
    kept: Sequence[Contender],
    tied: Sequence[Contender],
) -> str:
    recall = (
        "" if chosen.recall is None else f" and recall loss {-chosen.recall.estimate:+.1f} points"
    )
    why = "its loss is the lowest"
    if len(measured) == 1:
        why = "no other shape fits"
    elif len(kept) < len(measured):
        worse = [one.name for one in measured if one not in kept]
        less = "recall less" if len(worse) > 1 else "recalls less"
        why += f" of those that recall no worse ({' and '.join(worse)} {less})"
    if len(tied) > 1:
        why = f"of {len(tied)} shapes with the same loss it has the largest state"
    return (
        f"{chosen.name} ({chosen.share:.0%} of the state): loss {chosen.loss.estimate:+.4f} nats"
        f"{recall}; {why}"
    )
