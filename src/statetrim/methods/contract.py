"""The interface of a selection method: evidence about one layer -> indices of what it keeps."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import torch
from torch import Tensor

from ..artifacts.statistics import LayerStatistics
from ..cut.shape import Axis
from ..errors import StatetrimError
from ..statistics import STATISTICS
from ..statistics.statistic import Statistic

Score = Literal["qk", "q", "k"]
"""Score a channel by queries and keys together, or by one of them alone."""

Select = Callable[..., Tensor]


@dataclass(frozen=True, eq=False, kw_only=True)
class _LayerEvidence:
    """What a method sees of one layer besides its weights, whatever it selects."""

    generator: torch.Generator  # seeded
    statistics: LayerStatistics | None = None
    notes: dict[str, Any] = field(default_factory=dict)  # by the method, for the plan

    def statistic(self, name: str) -> Tensor:
        """The sum of this name over calibration tokens, such as "query_gram". Raises StatetrimError
        if it was not collected, because the method lacks it in `needs`."""
        value = self.statistics.sums.get(name) if self.statistics else None
        if value is None:
            raise StatetrimError(f"this method uses {name!r} without declaring that it needs it")
        return value

    @property
    def weights(self) -> dict[str, Tensor]:
        """Field -> weight."""
        names = [each.name for each in fields(self) if each.name.endswith("_weight")]
        return {name: getattr(self, name) for name in names}

    @property
    def table_shape(self) -> tuple[int, int]:
        """Number of heads, and of channels per head; of `HeadEvidence` groups, and heads of each.
        What is selected is one row per head or group."""
        rows, choices = next(iter(self.weights.values())).shape[:2]
        return rows, choices


@dataclass(frozen=True, eq=False)
class Evidence(_LayerEvidence):
    """Argument of a method that selects key channels: weights and statistics of one layer, and a
    seeded generator. The plan records what the method writes to `notes`."""

    query_weight: Tensor  # [heads, channels, copies, hidden], float64
    key_weight: Tensor  # [heads, channels, copies, hidden], float64


@dataclass(frozen=True, eq=False)
class ValueEvidence(_LayerEvidence):
    """Argument of a method that selects value channels; as `Evidence`, with other weights."""

    value_weight: Tensor  # [heads that select, channels, copies, hidden], float64
    output_weight: Tensor  # [heads that select, channels, copies, hidden], float64


@dataclass(frozen=True, eq=False)
class HeadEvidence(_LayerEvidence):
    """Argument of a method that selects heads, `keep` of each group; as `Evidence` otherwise."""

    output_weight: Tensor  # [groups, heads, channels, hidden], float64


@dataclass(frozen=True)
class Method:
    """A selection method and what it declares."""

    name: str
    select: Select  # select(evidence, keep, **options) -> kept [heads, keep]
    options: Mapping[str, Any]  # name -> default
    needs: tuple[Statistic, ...]
    axes: tuple[Axis, ...] = ("key",)


def as_method(select: Select, name: str | None = None) -> Method:
    """Make a method from a function whose keyword-only parameters, with defaults, are options; what
    it needs and selects is read from its decorators."""
    parameters = inspect.signature(select).parameters.values()
    options = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    axes: tuple[Axis, ...] = getattr(select, "axes", ("key",))
    return Method(name or select.__name__, select, options, getattr(select, "needs", ()), axes)


def needs(*statistics: str | Statistic) -> Callable[[Select], Select]:
    """Decorator: declare the statistics that a method uses, by name or as its own `Statistic`."""
    needed = tuple(_find_statistic(each) for each in statistics)

    def declare(select: Select) -> Select:
        select.needs = needed  # type: ignore[attr-defined]
        return select

    return declare


def _find_statistic(statistic: str | Statistic) -> Statistic:
    if isinstance(statistic, Statistic):
        if STATISTICS.get(statistic.name, statistic) is not statistic:
            raise StatetrimError(f"another statistic is called {statistic.name!r}; rename yours")
        return statistic
    if statistic not in STATISTICS:
        raise StatetrimError(
            f"there is no statistic {statistic!r}; name one of {', '.join(STATISTICS)}, or define "
            f"a Statistic"
        )
    return STATISTICS[statistic]


def selects(*axes: Axis) -> Callable[[Select], Select]:
    """Decorator: declare what a method selects; without it, key channels."""

    def declare(select: Select) -> Select:
        select.axes = axes  # type: ignore[attr-defined]
        return select

    return declare


def top(scores: Tensor, keep: int) -> Tensor:
    """Indices [heads, keep] of each head's largest scores [heads, channels], ascending.

    Scores equal to 12 digits count as ties, and a tie goes to the lowest index, so that rounding
    in a sum cannot decide. Raises StatetrimError for scores that are not finite.
    """
    if not scores.isfinite().all():
        raise StatetrimError("the method gives scores that are not finite; calibrate again")
    largest = scores.abs().amax(dim=1, keepdim=True).clamp_min(torch.finfo(scores.dtype).tiny)
    rounded = torch.round(scores / largest, decimals=12)
    order = rounded.argsort(dim=1, descending=True, stable=True)
    return order[:, :keep].sort(dim=1).values


def combine(score: Score, query: Tensor, key: Tensor) -> Tensor:
    """`query + key` for score "qk", `query` for "q", `key` for "k"; StatetrimError for others."""
    if score == "qk":
        return query + key
    if score in ("q", "k"):
        return query if score == "q" else key
    raise StatetrimError(f"score must be qk, q or k, not {str(score)[:40]!r}")
