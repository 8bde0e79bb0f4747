"""The sums so far on disk, one file a process, from which a killed calibration resumes."""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ..artifacts.statistics import TEXT, Statistics
from ..runtime.processes import Ranks
from ..storage.output import Output, output, partial_of
from ..storage.space import check_space
from .sums import Sums, statistics_of


class SavedSums:
    """What this process has summed; `work` is the place of the result, in the first process."""

    def __init__(
        self,
        out: Path,
        work: Output | None,
        ranks: Ranks,
        lineage: Mapping[str, Any],
        seconds: float,
    ) -> None:
        self.out, self.work, self.ranks, self.lineage = out, work, ranks, lineage
        self.path = partial_of(out) / f"sums-{ranks.rank}-of-{ranks.world}.safetensors"
        self.seconds, self.saved_at = seconds, time.monotonic()
        self.fits = False

    @property
    def walked(self) -> Path:
        """The directory of a walk from layer to layer."""
        return partial_of(self.out) / f"walk-{self.ranks.rank}-of-{self.ranks.world}"

    @property
    def done(self) -> bool:
        """Whether a killed run had only its last step before it."""
        return self.out.exists()

    def restore(self, sums: Mapping[str, Sums]) -> int:
        """Put what was saved into the sums of every source; returns how many batches it holds."""
        if not self.path.exists():
            return 0
        saved = Statistics.load(self.path)
        for source, held in saved.sources.items():
            if source in sums:
                sums[source].restore(held)
        return int(saved.lineage["batches"])

    def save(self, sums: Mapping[str, Sums], batches: int) -> None:
        if not self.fits:  # seen after the first batch, not after the last
            one = max(held.nbytes for held in sums.values())
            check_space(self.path.parent, 2 * len(sums) * one)
            self.fits = True
        if time.monotonic() - self.saved_at >= self.seconds:
            statistics_of(sums, {**self.lineage, "batches": batches}).save(self.path)
            self.saved_at = time.monotonic()

    def save_layer(self, sums: Mapping[str, Sums], layer: int) -> None:
        """The sums of a layer that all batches went through."""
        found = {source: {layer: held.layers[layer]} for source, held in sums.items()}
        path = self.walked / f"layer-{layer}.safetensors"
        Statistics(found.pop(TEXT), self.lineage, found).save(path)

    def restore_layers(self, sums: Mapping[str, Sums], layers: Iterable[int]) -> None:
        for layer in layers:
            saved = Statistics.load(self.walked / f"layer-{layer}.safetensors")
            for source, held in saved.sources.items():
                sums[source].restore(held)

    def finish(self, statistics: Statistics) -> None:
        if self.work is not None:
            statistics.save(self.work.path / "statistics.safetensors")
            self.work.publish()
        self.ranks.wait()  # until the result is there


@contextmanager
def saved_sums(
    out: str | Path | None, ranks: Ranks, lineage: Mapping[str, Any], seconds: float
) -> Iterator[SavedSums | None]:
    """The place of a calibration's sums, which belongs to this very one; None without `out`."""
    if out is None:
        yield None
        return
    out, work = Path(out), None
    with ExitStack() as stack:
        if ranks.rank == 0:
            record = {"format": "statetrim calibrate", **lineage, "processes": ranks.world}
            files, ours = {"statistics.safetensors": out}, ["sums-*.safetensors", "walk-*"]
            work = stack.enter_context(output(out, "job.json", record, files=files, ours=ours))
        ranks.wait()  # until the place is this job's
        yield SavedSums(out, work, ranks, lineage, seconds)
