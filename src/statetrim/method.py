"""The contract of a selection method: evidence about one layer in, kept channels out."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from .errors import StatetrimError

Score = Literal["qk", "q", "k"]
"""Judge a channel by queries and keys together, or by one of them alone."""

Select = Callable[..., Tensor]


@dataclass(frozen=True, eq=False)
class Evidence:
    """What a method may look at: one layer's projection weights and a seeded generator."""

    query_weight: Tensor  # [heads, channels, copies, hidden], float64
    key_weight: Tensor  # [heads, channels, copies, hidden], float64
    generator: torch.Generator


@dataclass(frozen=True)
class Method:
    """`select(evidence, keep, **options) -> kept [heads, keep]`, and its options' defaults."""

    name: str
    select: Select
    options: Mapping[str, Any]


def as_method(select: Select, name: str | None = None) -> Method:
    """A method from a function whose options are keyword-only with defaults."""
    parameters = inspect.signature(select).parameters.values()
    options = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    return Method(name or select.__name__, select, options)


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
