"""Which cut was chosen among those that reach a goal, and why."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log
from pathlib import Path
from typing import Any

from ..cut.shape import Shape
from ..errors import StatetrimError
from ..maths.formatting import list_text, shorten
from ..storage.checkpoint_files import path_inside
from .record import Artifact
from .scores import Scores

_SMALLEST_ERROR = 1e-9

BY_LAYER = "by-layer"
"""The name of widths by layer among shapes."""
Errors = Mapping[str, Mapping[int, float]]
"""Source -> layer -> relative residual sum of squares of the layer's output after a refit, on
held-out data."""


@dataclass(frozen=True)
class Prediction(Artifact):
    """Predicted errors of cuts by their shape (such as `64x64`), before one is made."""

    KIND = "prediction"

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


@dataclass(frozen=True)
class MeasuredShape:
    """One cut, or the original, and its state bytes per sequence."""

    shape: Shape  # of the widest heads
    method: str  # "none" for the original
    state_bytes: int  # per sequence, in `state_dtype`
    kept: str = ""  # in the format of `--to`; empty: all heads of `shape`
    sequences: float | None = None  # that fit in the engine of `trim --for`, else in vLLM
    state_dtype: str = "float32"  # in which the state was stored when it was measured
    block_size: int = 0  # tokens of a block of the engine's prefix cache; 0: not known
    needs: str = ""  # a flag of the engine, or a plugin
    key_heads: int = 0  # that stay, if some are removed with all their value heads

    def validate(self) -> None:
        if self.state_bytes < 1:
            raise ValueError("state_bytes must be 1 or more")

    @property
    def is_by_layer(self) -> bool:
        """Whether layers keep different widths, which `kept` lists."""
        return "=" in self.kept

    @property
    def label(self) -> str:
        """The name in a table; of the original "no cut"."""
        return str(self) if self.method != "none" else f"no cut{self._suffix}"

    @property
    def _suffix(self) -> str:
        return "" if self.state_dtype == "float32" else f" in {self.state_dtype}"

    def __str__(self) -> str:
        kept = BY_LAYER if self.is_by_layer else self.kept or str(self.shape)
        return f"{kept}{self._suffix}"


@dataclass(frozen=True)
class Decision(Artifact):
    """The cuts that reach a goal, the chosen one, and why it was chosen; none if a flag of the
    engine reaches the goal without a cut."""

    KIND = "decision"

    model: str = ""
    points: Sequence[MeasuredShape] = ()  # the original first, then it in 16 bits, then cuts
    chosen: str | None = None
    sentence: str = ""
    predicted: Mapping[str, float] = field(default_factory=dict)  # cost by shape, lowest first
    refused: Mapping[str, Sequence[str]] = field(default_factory=dict)  # by shape: engines
    lineage: Mapping[str, Any] = field(default_factory=dict)
    expected: str = ""  # of widths by layer, before they were measured
    files: Mapping[str, str] = field(default_factory=dict)  # shape -> its scores, in this directory

    def load_scores(self, directory: Path) -> dict[str, Scores]:
        """Shape -> the scores of the original and of its cut, as far as they lie in
        `directory`."""
        scores = {}
        for shape, name in self.files.items():
            if (directory / name).exists():
                scores[shape] = Scores.load(path_inside(directory, name))
        return scores

    def __repr__(self) -> str:
        shapes = list_text(map(str, self.points), 8)
        return f"<Decision on {shorten(self.model)}: {shorten(self.chosen)} of {shapes}>"


class NoCutNeeded(StatetrimError):
    """A flag of an engine reaches the goal without a cut, so that none was made: the message says
    which, and `decision` and the `scores` by its rows what it loses."""

    def __init__(self, message: str, decision: Decision, scores: Mapping[str, Scores]) -> None:
        super().__init__(message)
        self.decision, self.scores = decision, scores
