"""At how many positions an engine predicts the same token as transformers."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

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

    def check(self) -> None:
        """Raise ValueError unless an untrusted file has counts of every sequence."""
        if not self.places or min(self.places) < 1:
            raise ValueError("places must list the positions of every sequence")
        for name in ("agreed", "agreed_float32", "own"):
            counts: list[int] = getattr(self, name)
            if len(counts) != len(self.places) or min(counts) < 0:
                raise ValueError(f"{name} must list a count for every sequence")
