"""The measured rows that decide the claims of the paper. A function of `Evidence` for each claim
computes our figure and the verdict: no verdict is written by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from figures import RESULTS, Row, Rows, Verdict

NAMES = {"tiny-delta_net": "DeltaNet", "tiny-gated_deltanet6": "Gated DeltaNet"}
BEST, OTHERS = ("grad", "drrqr"), ("rand", "l1", "s_wanda")
METHODS = (*OTHERS, *BEST)
SMALL = {  # trained here, three seeds each
    "ordinary": "ordinary, 1M",
    "shared-in-head": "shared in a head, 1M",
    "shared-in-layer": "shared by all heads, 1M",
}
SEEDS = (0, 1, 2)
KEPT = (0.25, 0.5, 0.6, 0.7)
SHORT = 12 * 16 * 256  # tokens of recovery

Outcome = tuple[str, Verdict]
Decide = Callable[["Evidence"], Outcome]


class Evidence:
    """The rows of all scripts of this folder, by script."""

    def __init__(self, folder: Path = RESULTS) -> None:
        paper = folder / "paper"
        self.quality = Rows(paper / "quality.jsonl")
        self.tasks = Rows(paper / "tasks.jsonl")
        self.pca = Rows(paper / "pca.jsonl")
        self.spectra = Rows(paper / "spectra.jsonl")
        self.calibration = Rows(paper / "calibration.jsonl")
        self.rotation = Rows(paper / "rotation.jsonl")
        self.speed = Rows(paper / "speed.jsonl")

    def cut(self, model: str, method: str, keep: float = 0.5, score: str = "qk") -> list[Row]:
        if method == "none":
            return self.quality.select(model=model, stage="cut", method="none")
        filters = {"stage": "cut", "method": method, "score": score, "keep": keep}
        return self.quality.select(model=model, **filters)

    def recovered(
        self, method: str, keep: float = 0.5, model: str = "tiny-delta_net", tokens: int = SHORT
    ) -> list[Row]:
        filters: Row = {"stage": "recovered", "method": method, "tokens": tokens}
        if method != "none":
            filters |= {"score": "qk", "keep": keep}
        return self.quality.select(model=model, **filters)

    def recovered_widths(self, model: str) -> list[float]:
        """Widths at which the recovery of every method was measured with all samples."""
        return [keep for keep in KEPT if all(self._complete(model, m, keep) for m in METHODS)]

    def _complete(self, model: str, method: str, keep: float) -> bool:
        try:
            return len(self.recovered(method, keep, model)) == len(SEEDS)
        except LookupError:
            return False

    def before_recovery(self, method: str, keep: float, model: str = "tiny-delta_net") -> list[Row]:
        """The cuts that were recovered: those of all samples for `rand`, else the first."""
        rows = self.cut(model, method, keep)
        return rows if method == "rand" else rows[:1]

    def seeds(self, kind: str) -> list[int]:
        """Training seeds of the small models for which every row was measured."""
        last = {"method": "product", "keep": 0.25}
        measured = {row["model"] for row in self.pca.rows if last.items() <= row.items()}
        return [seed for seed in SEEDS if f"{kind}-{seed}" in measured]

    def projected(self, kind: str, method: str, keep: float = 1.0) -> list[Row]:
        """Rows of pca.py: one per training seed of a small model, else one per sample."""
        if kind not in SMALL:
            return self.pca.select(model=kind, method=method, keep=keep)
        names = [f"{kind}-{seed}" for seed in self.seeds(kind)]
        return [self.pca.select(model=name, method=method, keep=keep)[0] for name in names]

    def longest_recovery(self) -> int:
        return max(int(row["tokens"]) for row in self.quality.rows if row["stage"] == "recovered")

    def state(self, name: str, model: str = "tiny-delta_net") -> Row:
        return self.spectra.select(model=model, name=name)[0]
