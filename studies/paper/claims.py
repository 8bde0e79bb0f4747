"""What a claim of the paper is here, and the rows that decide it.

`found` gives our figure and the verdict, from the rows alone: nobody writes a verdict by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from figures import Row, Rows, Verdict

RESULTS = Path(__file__).parents[2] / "results"
NAMES = {"tiny-delta_net": "DeltaNet", "tiny-gated_deltanet6": "Gated DeltaNet"}
BEST, OTHERS = ("grad", "drrqr"), ("rand", "l1", "s_wanda")
SMALL = ("ordinary", "shared-in-head", "shared-in-layer")  # trained here: filters tied or not

Found = tuple[str, Verdict]


class Evidence:
    """All rows, by the script that wrote them."""

    def __init__(self, folder: Path = RESULTS) -> None:
        paper = folder / "paper"
        self.quality = Rows(paper / "quality.jsonl")
        self.tasks = Rows(paper / "tasks.jsonl")
        self.recoveries = Rows(folder / "recovery.jsonl")
        self.pca = Rows(paper / "pca.jsonl")
        self.spectra = Rows(paper / "spectra.jsonl")
        self.calibration = Rows(paper / "calibration.jsonl")
        self.rotation = Rows(paper / "rotation.jsonl")
        self.speed = Rows(paper / "speed.jsonl")

    def cut(self, model: str, method: str, keep: float = 0.5, score: str = "qk") -> list[Row]:
        if method == "none":
            return self.quality.of(model=model, stage="cut", method="none")
        what = {"stage": "cut", "method": method, "score": score, "keep": keep}
        return self.quality.of(model=model, **what)

    def recovered(self, method: str, keep: float = 0.5, model: str = "tiny-delta_net") -> list[Row]:
        what: Row = {"stage": "recovered", "method": method}
        if method != "none":
            what |= {"score": "qk", "keep": keep}
        return self.quality.of(model=model, **what)

    def has_recovered(self, method: str) -> bool:
        return any(
            row["stage"] == "recovered" and row["method"] == method and row["keep"] == 0.5
            for row in self.quality.rows
        )

    def long_recoveries(self) -> list[Row]:
        """Of studies/recover_reference.py: both models, all methods, half and a quarter kept."""
        rows = self.recoveries.of(data="text", tokens=196608)
        return [row for row in rows if row["method"] != "none"]

    def state(self, name: str, model: str = "tiny-delta_net") -> Row:
        return self.spectra.of(model=model, name=name)[0]


@dataclass(frozen=True)
class Claim:
    place: str
    says: str
    theirs: str
    found: Callable[[Evidence], Found]
    otherwise: str  # what would have changed our mind


def shown(claim: Claim, evidence: Evidence) -> tuple[str, str]:
    """Our figure and the verdict; "not run" where rows are missing."""
    try:
        return claim.found(evidence)
    except LookupError:
        return "", "not run"
