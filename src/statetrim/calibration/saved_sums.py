"""The sums so far on disk, one file a process, from which a killed calibration resumes."""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ..artifacts.statistics import TEXT, Statistics
from ..runtime.distributed import DistributedContext
from ..storage.output import Output, open_output, partial_path
from ..storage.space import check_space
from .sums import Sums, to_statistics


class SavedSums:
    """What this process has summed; `work` is the place of the result, in the first process."""

    def __init__(
        self,
        out: Path,
        partial_output: Output | None,
        ranks: DistributedContext,
        lineage: Mapping[str, Any],
        save_seconds: float,
    ) -> None:
        self.out, self.partial_output, self.ranks, self.lineage = (
            out,
            partial_output,
            ranks,
            lineage,
        )
        self.path = partial_path(out) / f"sums-{ranks.rank}-of-{ranks.world_size}.safetensors"
        self.save_seconds, self.saved_at = save_seconds, time.monotonic()
        self.space_checked = False

    @property
    def layerwise_directory(self) -> Path:
        """The directory of a walk from layer to layer."""
        return partial_path(self.out) / f"walk-{self.ranks.rank}-of-{self.ranks.world_size}"

    @property
    def is_finished(self) -> bool:
        """Whether a killed run had only its last step before it."""
        return self.out.exists()

    def restore(self, sums: Mapping[str, Sums]) -> int:
        """Put what was saved into the sums of every source; returns how many batches it holds."""
        if not self.path.exists():
            return 0
        saved = Statistics.load(self.path)
        for source, layers in saved.sources.items():
            if source in sums:
                sums[source].restore(layers)
        return int(saved.lineage["batches"])

    def save(self, sums: Mapping[str, Sums], batches: int) -> None:
        if not self.space_checked:  # seen after the first batch, not after the last
            largest = max(source_sums.nbytes for source_sums in sums.values())
            check_space(self.path.parent, 2 * len(sums) * largest)
            self.space_checked = True
        if time.monotonic() - self.saved_at >= self.save_seconds:
            to_statistics(sums, {**self.lineage, "batches": batches}).save(self.path)
            self.saved_at = time.monotonic()

    def save_layer(self, sums: Mapping[str, Sums], layer: int) -> None:
        """The sums of a layer that all batches went through."""
        by_source = {
            source: {layer: source_sums.layer_statistics[layer]}
            for source, source_sums in sums.items()
        }
        path = self.layerwise_directory / f"layer-{layer}.safetensors"
        Statistics(by_source.pop(TEXT), self.lineage, by_source).save(path)

    def restore_layers(self, sums: Mapping[str, Sums], layers: Iterable[int]) -> None:
        for layer in layers:
            saved = Statistics.load(self.layerwise_directory / f"layer-{layer}.safetensors")
            for source, saved_layers in saved.sources.items():
                sums[source].restore(saved_layers)

    def finish(self, statistics: Statistics) -> None:
        if self.partial_output is not None:
            statistics.save(self.partial_output.path / "statistics.safetensors")
            self.partial_output.publish()
        self.ranks.barrier()  # until the result is there


@contextmanager
def open_saved_sums(
    out: str | Path | None,
    ranks: DistributedContext,
    lineage: Mapping[str, Any],
    save_seconds: float,
) -> Iterator[SavedSums | None]:
    """The place of a calibration's sums, which belongs to this very one; None without `out`."""
    if out is None:
        yield None
        return
    out, partial_output = Path(out), None
    with ExitStack() as stack:
        if ranks.rank == 0:
            record = {"format": "statetrim calibrate", **lineage, "processes": ranks.world_size}
            files, temporary_patterns = (
                {"statistics.safetensors": out},
                ["sums-*.safetensors", "walk-*"],
            )
            partial_output = stack.enter_context(
                open_output(
                    out, "job.json", record, files=files, temporary_patterns=temporary_patterns
                )
            )
        ranks.barrier()  # until the place is this job's
        yield SavedSums(out, partial_output, ranks, lineage, save_seconds)
