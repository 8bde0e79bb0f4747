"""Verification: how often an engine predicts the same tokens as transformers, for each model."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from ..maths.formatting import Table
from ..maths.paired import Interval, Pairs, difference_interval, zero_event_bound
from .record import Artifact, as_fields, header

MAX_MARGIN = 100.0  # points; a wider interval of a share says nothing

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


@dataclass(frozen=True)
class Verification(Artifact):
    """How an engine's output compares with transformers, for each of `models`, the original first.

    `faults` and `notes` are sentences by model, empty if there is no problem; `refusals` say why a
    model did not run in the engine.
    """

    KIND = "verification"

    engine: str
    version: str
    dtype: str
    models: list[str]
    agreements: list[Agreement] = field(default_factory=list)
    refusals: dict[str, str] = field(default_factory=dict)
    faults: dict[str, list[str]] = field(default_factory=dict)
    notes: dict[str, list[str]] = field(default_factory=dict)
    lineage: dict[str, Any] = field(default_factory=dict)

    @property
    def kinds(self) -> list[Kind]:
        """The kinds of sequences that were compared."""
        return list(dict.fromkeys(agreement.kind for agreement in self.agreements))

    def find(self, model: str, kind: Kind) -> Agreement | None:
        """The agreement of one model on one kind of sequences; None if it did not run."""
        for agreement in self.agreements:
            if (agreement.model, agreement.kind) == (model, kind):
                return agreement
        return None

    def agreement_change(self, model: str, kind: Kind) -> Interval | None:
        """How much more often a cut agrees than the original, in points, paired by sequence, so
        that a loss is negative; None if one of them did not run."""
        before, after = self.find(self.models[0], kind), self.find(model, kind)
        if before is None or after is None:
            return None
        pairs = Pairs(before.share_by_sequence, after.share_by_sequence)
        change = difference_interval([pairs])
        if bool((pairs.before == pairs.after).all()):  # a bootstrap would have no width
            bound = zero_event_bound(sum(after.places))
            change = Interval(0.0, -bound, bound)
        return change.transformed(lambda x: 100 * x)

    def faults_of(self, fingerprint: str) -> list[str]:
        """The faults of the model with this fingerprint; empty if it was not verified."""
        faults = []
        for name in self._models_with_fingerprint(fingerprint):
            faults += self.faults.get(name, [])
        return faults

    def has_run(self, fingerprint: str) -> bool:
        """Whether the model with this fingerprint ran in the engine."""
        names = self._models_with_fingerprint(fingerprint)
        return any(agreement.model in names for agreement in self.agreements)

    def _models_with_fingerprint(self, fingerprint: str) -> list[str]:
        fingerprints = self.lineage.get("models") or []
        pairs = zip(fingerprints, self.models, strict=False)
        return [name for stored, name in pairs if stored == fingerprint]

    def as_json(self) -> dict[str, Any]:
        return {**as_fields(self), **header(self.KIND), "engine_version": self.version}

    @classmethod
    def read_fields(cls, path: str | Path) -> dict[str, Any]:
        """The fields, with the engine's version in place of that of the format."""
        stored = super().read_fields(path)
        return stored | {"version": stored.get("engine_version")}


def agreement_table(verification: Verification) -> Table:
    """A row per model and kind of sequences; what a cut lost against the original is in points."""
    rows = []
    for agreement in verification.agreements:
        change, loss = verification.agreement_change(agreement.model, agreement.kind), ""
        if change is not None and agreement.model != verification.models[0]:
            lost = -change
            loss = f"{lost.estimate:+.2f}"
            if lost.margin <= MAX_MARGIN:
                loss += f" ({lost.low:+.2f} to {lost.high:+.2f})"
        agreed = f"{sum(agreement.agreed):,} of {sum(agreement.places):,}"
        gap = f"{agreement.largest_gap:.2g}"
        rows.append((agreement.model, agreement.kind, agreed, loss, gap))
    engine = verification.version or verification.engine
    title = f"{engine}, {verification.dtype}, compared with transformers"
    return Table(title, ("model", "tokens", "choices equal", "loss, points", "largest gap"), rows)
