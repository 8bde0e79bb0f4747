"""Which shape a state was cut to, and why: predicted errors and measured losses by shape."""

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
        """Write a JSON file atomically, replacing an existing one."""
        write_json(path, {**header("prediction"), "errors": self.errors})

    @staticmethod
    def load(path: Path) -> "Prediction":
        """Read an untrusted file; raises StatetrimError if it is damaged."""
        stored = read_json(path, _MAX_BYTES)
        check_header(stored, "prediction", path)
        try:
            errors = {name: _parse_errors(fields) for name, fields in stored["errors"].items()}
            if not errors:
                raise ValueError
        except (KeyError, AttributeError, TypeError, ValueError):
            raise StatetrimError(f"{path} holds errors that cannot be read; remove it") from None
        return Prediction(errors)


def _parse_errors(stored: Any) -> Errors:
    """The errors of one shape; raises ValueError if a source or a layer is missing."""
    errors: dict[str, dict[int, float]] = {}
    for source, by_layer in stored.items():
        errors[source] = {int(layer): _parse_number(error) for layer, error in by_layer.items()}
    if not errors or not all(errors.values()):
        raise ValueError
    return errors


def _parse_number(value: Any) -> float:
    """A finite int or float as float; raises ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise ValueError
    return float(value)


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
        """Write a JSON file atomically, replacing an existing one."""
        write_json(path, {**header("decision"), **asdict(self)})

    @staticmethod
    def load(path: Path) -> "Decision":
        """Read an untrusted file; raises StatetrimError if it is damaged."""
        stored = read_json(path, _MAX_BYTES)
        check_header(stored, "decision", path)
        try:
            chosen, sentence = _parse_text(stored["chosen"]), _parse_text(stored["sentence"])
            predicted, refused = {}, {}
            for name, cost in stored["predicted"].items():
                predicted[_parse_text(name)] = _parse_number(cost)
            for name, engines in stored["refused"].items():
                refused[name] = [_parse_text(engine) for engine in engines]
            measured = [_parse_candidate(candidate) for candidate in stored["measured"]]
            if chosen not in predicted:
                raise ValueError
        except (KeyError, AttributeError, TypeError, ValueError):
            raise StatetrimError(f"{path} holds a decision that cannot be read") from None
        return Decision(chosen, sentence, predicted, refused, measured)


def _parse_text(value: Any) -> str:
    """A string of at most _MAX_TEXT_LENGTH characters; raises ValueError for anything else."""
    if not isinstance(value, str) or len(value) > _MAX_TEXT_LENGTH:
        raise ValueError
    return value


def _parse_candidate(stored: Mapping[str, Any]) -> Candidate:
    """From untrusted JSON; raises KeyError, TypeError or ValueError if a field is not valid."""
    recall = stored["recall"]
    return Candidate(
        _parse_text(stored["name"]),
        _parse_number(stored["share"]),
        _parse_interval(stored["loss"]),
        None if recall is None else _parse_interval(recall),
    )


def _parse_interval(stored: Mapping[str, Any]) -> Interval:
    """From untrusted JSON; raises KeyError, TypeError or ValueError if a bound is not valid."""
    low, high = _parse_number(stored["low"]), _parse_number(stored["high"])
    return Interval(_parse_number(stored["estimate"]), low, high)


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
    """The chosen shape with its share of the state, its loss in nats per token, its recall loss in
    points, and why it was chosen."""
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
