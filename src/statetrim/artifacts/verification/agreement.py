"""At how many places an engine chose as transformers does."""

from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal["texts", "continuations"]
"""Texts that both read, or what the engine said by itself and transformers then read."""


@dataclass(frozen=True)
class Agreement:
    """At how many places of each sequence an engine chose as transformers does.

    Both are given the same tokens before every place. A choice that shares transformers' best logit
    counts as its own. `agreed` is judged in the engine's dtype, `agreed_float32` in float32; `own`
    is how often transformers in the engine's dtype agrees with itself in float32.
    """

    model: str
    kind: Kind
    places: list[int]
    agreed: list[int]
    agreed_float32: list[int]
    own: list[int]
    largest_gap: float  # logits by which transformers preferred another token
    largest_difference: float | None  # of a choice's log-probability; None where it is not told
    different_tokens: int  # that the engine chose

    def share(self, name: Literal["agreed", "agreed_float32", "own"] = "agreed") -> float:
        counts: list[int] = getattr(self, name)
        return sum(counts) / sum(self.places)


def is_valid(agreement: Agreement) -> bool:
    """Whether the fields of an untrusted file have the types they claim."""
    counts = (agreement.places, agreement.agreed, agreement.agreed_float32, agreement.own)
    numbers = (
        agreement.largest_gap,
        agreement.largest_difference or 0.0,
        agreement.different_tokens,
    )
    return (
        isinstance(agreement.model, str)
        and agreement.kind in get_args(Kind)
        and all(
            isinstance(field_counts, list) and len(field_counts) == len(agreement.places)
            for field_counts in counts
        )
        and bool(agreement.places)
        and all(
            type(count) is int and count >= 0 for field_counts in counts for count in field_counts
        )
        and min(agreement.places) > 0
        and all(type(number) in (int, float) for number in numbers)
    )
