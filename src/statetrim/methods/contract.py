"""The contract of a selection method: evidence about one layer in, kept channels out."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from ..artifacts.statistics import SUM_NAMES, LayerStatistics
from ..errors import StatetrimError, warn_deprecated
from ..geometry import Axis

Score = Literal["qk", "q", "k"]
"""Judge a channel by queries and keys together, or by one of them alone."""

Selectable = Axis | Literal["head"]
"""What a method chooses: channels of an axis, or whole heads."""

Select = Callable[..., Tensor]


class _HasStatistics:
    """What all evidence has in common."""

    statistics: LayerStatistics | None

    def statistic(self, name: str) -> Tensor:
        """One of calibration's sums; the method must have declared that it `needs` it."""
        value = getattr(self.statistics, name, None)
        if not isinstance(value, Tensor):
            raise StatetrimError(f"this method uses {name!r} without declaring that it needs it")
        return value

    def heard(self, name: str) -> Tensor:
        """The name of `statistic` in 0.1."""
        warn_deprecated("evidence.heard", "use evidence.statistic", "0.4")
        return self.statistic(name)


@dataclass(frozen=True, eq=False)
class Evidence(_HasStatistics):
    """What a selection method is given: the projection weights of one layer, the statistics of that
    layer, and a seeded generator. A method may write to `notes` what the plan should record."""

    query_weight: Tensor  # [heads, channels, copies, hidden], float64
    key_weight: Tensor  # [heads, channels, copies, hidden], float64
    generator: torch.Generator
    statistics: LayerStatistics | None = None
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, int]:
        """Heads and channels to choose from."""
        return self.query_weight.shape[0], self.query_weight.shape[1]


@dataclass(frozen=True, eq=False)
class ValueEvidence(_HasStatistics):
    """What a selection method for value channels is given."""

    value_weight: Tensor  # [heads, channels, copies, hidden], float64
    output_weight: Tensor  # [heads, channels, copies, hidden], float64
    generator: torch.Generator
    statistics: LayerStatistics | None = None
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, int]:
        """Heads and channels to choose from."""
        return self.value_weight.shape[0], self.value_weight.shape[1]


@dataclass(frozen=True, eq=False)
class HeadEvidence(_HasStatistics):
    """The same for a method that chooses whole heads, so many of each group."""

    output_weight: Tensor  # [groups, heads, channels, hidden], float64
    generator: torch.Generator
    statistics: LayerStatistics | None = None
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, int]:
        """Groups, and heads to choose from in each."""
        return self.output_weight.shape[0], self.output_weight.shape[1]


@dataclass(frozen=True)
class Method:
    """`select(evidence, keep, **options) -> kept [heads, keep]`, with its options' defaults, the
    sums of calibration it needs and what it can choose."""

    name: str
    select: Select
    options: Mapping[str, Any]
    needs: tuple[str, ...]
    axes: tuple[Selectable, ...] = ("key",)


def as_method(select: Select, name: str | None = None) -> Method:
    """A method from a function whose options are keyword-only with defaults."""
    parameters = inspect.signature(select).parameters.values()
    options = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    axes: tuple[Selectable, ...] = getattr(select, "axes", ("key",))
    return Method(name or select.__name__, select, options, getattr(select, "needs", ()), axes)


def needs(*names: str) -> Callable[[Select], Select]:
    """Declare the calibration sums a method uses (fields of LayerStatistics)."""
    unknown = set(names) - set(SUM_NAMES)
    assert not unknown, f"no such statistics: {unknown}"

    def declare(select: Select) -> Select:
        select.needs = names  # type: ignore[attr-defined]
        return select

    return declare


def selects(*axes: Selectable) -> Callable[[Select], Select]:
    """Declare what a method chooses; without it, key channels."""

    def declare(select: Select) -> Select:
        select.axes = axes  # type: ignore[attr-defined]
        return select

    return declare


def top(scores: Tensor, keep: int) -> Tensor:
    """Indices [heads, keep] of each head's largest scores [heads, channels], ascending.

    Scores equal to 12 digits count as ties, and a tie goes to the lowest index, so that rounding
    in a sum cannot decide.
    """
    largest = scores.abs().amax(dim=1, keepdim=True).clamp_min(torch.finfo(scores.dtype).tiny)
    rounded = torch.round(scores / largest, decimals=12)
    order = rounded.argsort(dim=1, descending=True, stable=True)
    return order[:, :keep].sort(dim=1).values


def combine(score: Score, query: Tensor, key: Tensor) -> Tensor:
    """The two parts of a channel's score, joint or one of them alone."""
    if score == "qk":
        return query + key
    if score in ("q", "k"):
        return query if score == "q" else key
    raise StatetrimError(f"score must be qk, q or k, not {str(score)[:40]!r}")
