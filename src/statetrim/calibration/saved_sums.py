"""Where a calibration writes its result, and the finished layers of a layerwise one, to resume."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..artifacts.statistics import TEXT, Statistics
from ..runtime.distributed import DistributedContext
from ..storage.output import Output, open_output, partial_path
from .sums import Sums


@dataclass(frozen=True, eq=False)
class SavedSums:
    """The saved sums of this process; `partial_output`, of rank 0 only, publishes the result."""

    out: Path
    partial_output: Output | None
    ranks: DistributedContext
    lineage: Mapping[str, Any]

    @property
    def layerwise_directory(self) -> Path:
        """Hidden states and finished layers of a layerwise calibration."""
        return partial_path(self.out) / f"walk-{self.ranks.rank}-of-{self.ranks.world_size}"

    @property
    def is_finished(self) -> bool:
        """Whether an earlier run published `out` and was killed before it could clean up."""
        return self.out.exists()

    def save_layer(self, sums: Mapping[str, Sums], layer: int) -> None:
        """Save the sums of a layer that all batches have passed as `layer-LAYER.safetensors`."""
        by_source = {name: {layer: each.layer_statistics[layer]} for name, each in sums.items()}
        path = self.layerwise_directory / f"layer-{layer}.safetensors"
        Statistics(by_source.pop(TEXT), self.lineage, by_source).save(path)

    def restore_layers(self, sums: Mapping[str, Sums], layers: Iterable[int]) -> None:
        """Load the saved sums of `layers` into `sums`."""
        for layer in layers:
            saved = Statistics.load(self.layerwise_directory / f"layer-{layer}.safetensors")
            for source, saved_layers in saved.sources.items():
                sums[source].restore(saved_layers)

    def finish(self, statistics: Statistics) -> None:
        """Write and publish the result in rank 0; the other processes wait for it."""
        if self.partial_output is not None:
            statistics.save(self.partial_output.path / "statistics.safetensors")
            self.partial_output.publish()
        self.ranks.barrier()


@contextmanager
def open_saved_sums(
    out: str | Path | None,
    ranks: DistributedContext,
    lineage: Mapping[str, Any],
) -> Iterator[SavedSums | None]:
    """`OUT.partial`, locked by rank 0, for the sums of this calibration; None without `out`."""
    if out is None:
        yield None
        return
    out, partial_output = Path(out), None
    with ExitStack() as stack:
        if ranks.rank == 0:
            record = {"format": "statetrim calibrate", **lineage, "processes": ranks.world_size}
            files = {"statistics.safetensors": out}
            partial_output = stack.enter_context(
                open_output(out, "job.json", record, files=files, temporary_patterns=["walk-*"])
            )
        ranks.barrier()  # until rank 0 has checked and locked the directory
        yield SavedSums(out, partial_output, ranks, lineage)
