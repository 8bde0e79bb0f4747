"""The sums so far on disk, so that a killed calibration goes on where it was."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..artifacts.statistics import Statistics
from ..errors import StatetrimError
from ..runtime.processes import Ranks
from .sums import Sums, statistics_of


class Partial:
    """One file a process."""

    def __init__(
        self, out: Path, ranks: Ranks, lineage: dict[str, Any], resume: bool, seconds: float
    ) -> None:
        if out.exists():
            raise StatetrimError(f"{out} exists already and is not overwritten; choose another")
        suffix = f".{ranks.rank}-of-{ranks.world}" if ranks.world > 1 else ""
        self.path = out.with_name(f"{out.name}{suffix}.partial")
        if self.path.exists() and not resume:
            raise StatetrimError(
                f"{self.path} is left from an interrupted run; add --resume to go on, or remove it"
            )
        self.out, self.ranks, self.lineage, self.seconds = out, ranks, lineage, seconds
        self.saved_at = time.monotonic()

    def restore(self, sums: Mapping[str, Sums]) -> int:
        """Put what was saved into the sums of every source; returns how many batches it holds."""
        if not self.path.exists():
            return 0
        saved = Statistics.load(self.path)
        for name, value in self.lineage.items():
            if saved.lineage.get(name) != value:
                raise StatetrimError(
                    f"{self.path} is left from a run with another {name!r}; "
                    f"repeat that run, or remove it"
                )
        for source, held in saved.sources.items():
            if source in sums:
                sums[source].restore(held)
        return int(saved.lineage["batches"])

    def save(self, sums: Mapping[str, Sums], batches: int) -> None:
        if time.monotonic() - self.saved_at >= self.seconds:
            statistics_of(sums, self.lineage | {"batches": batches}).save(self.path)
            self.saved_at = time.monotonic()

    def finish(self, statistics: Statistics) -> None:
        if self.ranks.rank == 0:
            statistics.save(self.out)
        self.ranks.wait()  # nobody drops its share before the whole is on disk
        self.path.unlink(missing_ok=True)
