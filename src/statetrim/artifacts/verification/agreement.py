"""At how many positions an engine predicts the same token as transformers."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from ...maths.units import is_integer_list

Kind = Literal["texts", "continuations"]
"""Given texts, or continuations that the engine generated and transformers then scored."""


@dataclass(frozen=True)
class Agreement:
    """At how many positions of each sequence an engine predicts the same token as transformers.

    Both have the same tokens before each position. A token that ties with transformers' best logit
    counts as agreed. `agreed` compares with transformers in the engine's dtype, `agreed_float32` in
    float32; `own` counts where transformers in the engine's dtype agrees with itself in float32.
    """

    model: str
    kind: Kind
    places: list[int]  # positions compared, by sequence
    agreed: list[int]
    agreed_float32: list[int]
    own: list[int]
    largest_gap: float  # logits by which transformers preferred another token
    largest_difference: float | None  # of a log-probability; None if the engine reports none
    different_tokens: int  # distinct tokens that the engine predicted

    def share(self, name: Literal["agreed", "agreed_float32", "own"] = "agreed") -> float:
        """The share of all positions at which the counts of `name` agree."""
        counts: list[int] = getattr(self, name)
        return sum(counts) / sum(self.places)

    @property
    def share_by_sequence(self) -> Tensor:
        """The share of agreed positions, float64 [sequences]."""
        return torch.tensor(self.agreed, dtype=torch.float64) / torch.tensor(self.places)


def is_valid(agreement: Agreement) -> bool:
    """Whether the fields of an untrusted file have the right types, and counts per sequence."""
    places = agreement.places
    for counts in (places, agreement.agreed, agreement.agreed_float32, agreement.own):
        if not is_integer_list(counts) or not counts or min(counts) < 0:
            return False
        if len(counts) != len(places):
            return False
    for number in (agreement.largest_gap, agreement.largest_difference or 0.0):
        if type(number) not in (int, float):
            return False
    return (
        isinstance(agreement.model, str)
        and agreement.kind in get_args(Kind)
        and min(places) > 0
        and type(agreement.different_tokens) in (int, float)
    )
