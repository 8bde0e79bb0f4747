"""Verification: how an engine answers for cuts and their original, judged by transformers."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from ...errors import StatetrimError
from ...maths.paired import Interval, Pairs, difference_interval, unseen
from ...maths.units import MIB
from ...storage.json_file import read_object, write_object
from ..header import check_header, header
from .agreement import Agreement, Kind, sound

MOST_BYTES = 16 * MIB
LEVEL = 0.95


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
        return list(dict.fromkeys(found.kind for found in self.agreements))

    def find(self, model: str, kind: Kind) -> Agreement | None:
        wanted = (model, kind)
        return next((a for a in self.agreements if (a.model, a.kind) == wanted), None)

    def change(self, model: str, kind: Kind) -> Interval | None:
        """How much more often a cut agrees than the original, in points; paired by sequence."""
        before, after = (self.find(which, kind) for which in (self.models[0], model))
        if before is None or after is None:
            return None
        shares = [
            torch.tensor(found.agreed, dtype=torch.float64) / torch.tensor(found.places)
            for found in (before, after)
        ]
        moved = difference_interval([Pairs(*shares)], level=LEVEL)
        if bool((shares[0] == shares[1]).all()):
            bound = unseen(sum(after.places), LEVEL)  # nothing to resample, which proves little
            moved = Interval(0.0, -bound, bound)
        return Interval(100 * moved.estimate, 100 * moved.low, 100 * moved.high)

    def faults_of(self, fingerprint: str) -> list[str]:
        """The faults of the model whose weights these are; none where it is not among them."""
        return [x for name in self._named(fingerprint) for x in self.faults.get(name, [])]

    def ran(self, fingerprint: str) -> bool:
        """Whether the engine answered for the model whose weights these are."""
        names = self._named(fingerprint)
        return any(found.model in names for found in self.agreements)

    def _named(self, fingerprint: str) -> list[str]:
        marks = zip(self.lineage.get("models") or [], self.models, strict=False)
        return [name for mark, name in marks if mark == fingerprint]

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), **header("verification"), "engine_version": self.version}

    def save(self, path: str | Path) -> None:
        write_object(Path(path), self.as_json())

    @classmethod
    def load(cls, path: str | Path) -> "Verification":
        stored = read_object(Path(path), MOST_BYTES)
        check_header(stored, "verification", path)
        del stored["format"]
        try:
            agreements = [Agreement(**found) for found in stored.pop("agreements")]
            stored["version"] = stored.pop("engine_version")
            found = cls(**stored, agreements=agreements)
        except (KeyError, TypeError):
            raise StatetrimError(f"{path} is not what statetrim verify writes") from None
        if not _sound(found):
            raise StatetrimError(f"{path} is not what statetrim verify writes")
        return found


def _sound(found: Verification) -> bool:
    """Whether the fields of an untrusted file have the types they claim."""
    texts = (found.engine, found.version, found.dtype)
    said = (found.faults, found.notes)
    if not all(isinstance(some, dict) for some in (*said, found.refusals, found.lineage)):
        return False
    if not isinstance(found.lineage.get("models", []), list):
        return False
    lists = [found.models, [*found.refusals.values()], *(x for s in said for x in s.values())]
    return (
        all(isinstance(text, str) for text in texts)
        and all(isinstance(several, list) for several in lists)
        and len(found.models) > 1
        and all(isinstance(text, str) for several in lists for text in several)
        and all(map(sound, found.agreements))
    )
