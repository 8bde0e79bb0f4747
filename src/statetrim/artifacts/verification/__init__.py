"""Verification: how an engine answers for cuts and their original, judged by transformers."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from ...errors import StatetrimError
from ...maths.paired import Interval, Pairs, difference_interval, zero_event_bound
from ...maths.units import MIB
from ...storage.json_file import read_json, write_json
from ..header import check_header, header
from .agreement import Agreement, Kind, is_valid

MAX_BYTES = 16 * MIB
CONFIDENCE_LEVEL = 0.95


@dataclass(frozen=True)
class Verification:
    """How an engine's output compares with transformers, for each of `models`, the original first.

    `faults` and `notes` are sentences by model, empty if there is no problem; `refusals` say why a
    model did not run in the engine.
    """

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
        return list(dict.fromkeys(agreement.kind for agreement in self.agreements))

    def find(self, model: str, kind: Kind) -> Agreement | None:
        wanted = (model, kind)
        return next((a for a in self.agreements if (a.model, a.kind) == wanted), None)

    def agreement_change(self, model: str, kind: Kind) -> Interval | None:
        """How much more often a cut agrees than the original, in points; paired by sequence."""
        before, after = (self.find(name, kind) for name in (self.models[0], model))
        if before is None or after is None:
            return None
        shares = [
            torch.tensor(agreement.agreed, dtype=torch.float64) / torch.tensor(agreement.places)
            for agreement in (before, after)
        ]
        change = difference_interval([Pairs(*shares)], level=CONFIDENCE_LEVEL)
        if bool((shares[0] == shares[1]).all()):
            bound = zero_event_bound(
                sum(after.places), CONFIDENCE_LEVEL
            )  # nothing to resample, which proves little
            change = Interval(0.0, -bound, bound)
        return Interval(100 * change.estimate, 100 * change.low, 100 * change.high)

    def faults_of(self, fingerprint: str) -> list[str]:
        """The faults of the model whose weights these are; none where it is not among them."""
        return [
            x
            for name in self._models_with_fingerprint(fingerprint)
            for x in self.faults.get(name, [])
        ]

    def has_run(self, fingerprint: str) -> bool:
        """Whether the engine answered for the model whose weights these are."""
        names = self._models_with_fingerprint(fingerprint)
        return any(agreement.model in names for agreement in self.agreements)

    def _models_with_fingerprint(self, fingerprint: str) -> list[str]:
        fingerprints = zip(self.lineage.get("models") or [], self.models, strict=False)
        return [
            name for model_fingerprint, name in fingerprints if model_fingerprint == fingerprint
        ]

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), **header("verification"), "engine_version": self.version}

    def save(self, path: str | Path) -> None:
        write_json(Path(path), self.as_json())

    @classmethod
    def load(cls, path: str | Path) -> "Verification":
        stored = read_json(Path(path), MAX_BYTES)
        check_header(stored, "verification", path)
        del stored["format"]
        try:
            agreements = [Agreement(**verification) for verification in stored.pop("agreements")]
            stored["version"] = stored.pop("engine_version")
            verification = cls(**stored, agreements=agreements)
        except (KeyError, TypeError):
            raise StatetrimError(f"{path} is not what statetrim verify writes") from None
        if not _is_valid(verification):
            raise StatetrimError(f"{path} is not what statetrim verify writes")
        return verification


def _is_valid(verification: Verification) -> bool:
    """Whether the fields of an untrusted file have the types they claim."""
    texts = (verification.engine, verification.version, verification.dtype)
    sentences = (verification.faults, verification.notes)
    if not all(
        isinstance(mapping, dict)
        for mapping in (*sentences, verification.refusals, verification.lineage)
    ):
        return False
    if not isinstance(verification.lineage.get("models", []), list):
        return False
    lists = [
        verification.models,
        [*verification.refusals.values()],
        *(x for s in sentences for x in s.values()),
    ]
    return (
        all(isinstance(text, str) for text in texts)
        and all(isinstance(texts_of_field, list) for texts_of_field in lists)
        and len(verification.models) > 1
        and all(isinstance(text, str) for texts_of_field in lists for text in texts_of_field)
        and all(map(is_valid, verification.agreements))
    )
