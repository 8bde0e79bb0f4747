"""Timings: speed, memory and throughput of models, as records that can be compared."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import StatetrimError
from ..maths.formatting import Table, bytes_text, list_text, quantity_text
from .record import Artifact

_BYTES = "bytes"  # the unit of sizes, alone or as "bytes/sequence"


@dataclass(frozen=True)
class Timing:
    """One measurement of one model: the median over rounds, and its quartiles (`spread`).

    `ratio` is the median over rounds of the ratio to the baseline (in a round the models run one
    after the other). It is None for the baseline and for sizes.
    """

    model: str
    metric: str
    batch: int | None
    length: int | None
    value: float
    unit: str
    spread: tuple[float, float] | None = None
    ratio: float | None = None
    ratio_spread: tuple[float, float] | None = None


@dataclass(frozen=True)
class Timings(Artifact):
    """All timings of a run; the baseline is the first of `models`."""

    KIND = "timings"

    models: list[str]
    records: list[Timing]
    lineage: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        metrics = dict.fromkeys(record.metric for record in self.records)
        return f"<Timings of {list_text(self.models)}: {list_text(metrics, 8)}>"

    def table(self) -> Table:
        """A row per measurement, a column per model, with the ratio to the first model."""
        by_row: dict[tuple[str, int | None, int | None], dict[str, Timing]] = {}
        for record in self.records:
            row_key = (record.metric, record.batch, record.length)
            by_row.setdefault(row_key, {}).setdefault(record.model, record)
        rows = []
        for (metric, *sizes), cells in by_row.items():
            row_records = [cells.get(model) for model in self.models]
            unit = next(iter(cells.values())).unit
            size_texts = ["" if size is None else str(size) for size in sizes]
            texts = [timing_text(record, row_records[0]) for record in row_records]
            label = f"{metric}, {unit}"
            if unit.startswith(_BYTES):  # each figure has its unit
                per = unit.removeprefix(_BYTES).replace("/", ", per ")
                label = f"{metric.removesuffix(f' {_BYTES}')}{per}"
            rows.append((label, *size_texts, *texts))
        return Table("Timings", ("", "batch", "length", *self.models), rows)

    @property
    def baseline(self) -> str:
        """The model with which the others are compared."""
        return self.models[0]

    def first(
        self, model: str, metric: str, batch: int | None = None, length: int | None = None
    ) -> Timing:
        """The first record of a metric with this batch and length; None is any. Raises
        StatetrimError if there is none."""
        for record in self.records:
            same_size = batch in (None, record.batch) and length in (None, record.length)
            if (record.model, record.metric) == (model, metric) and same_size:
                return record
        raise StatetrimError(f"the timings hold no {metric} of {model}")


def unique_names(names: Sequence[str]) -> list[str]:
    """The names of directories, with a number added to repeated ones: "a", "a (2)"."""
    unique: list[str] = []
    for name in names:
        duplicates = sum(other == name or other.startswith(f"{name} (") for other in unique)
        unique.append(f"{name} ({duplicates + 1})" if duplicates else name)
    return unique


def timing_text(record: Timing | None, baseline: Timing | None) -> str:
    """A value and its ratio to the baseline's, which may differ from the median `ratio`; within
    noise if the quartiles of the ratios by round include 1."""
    if record is None:
        return ""
    is_size = record.unit.startswith(_BYTES)
    text = bytes_text(record.value) if is_size else quantity_text(record.value)
    if baseline is None or baseline is record or not baseline.value:
        return text
    low, high = record.ratio_spread or (0.0, 0.0)
    noise = ", within noise" if low <= 1.0 <= high else ""
    return f"{text} ({record.value / baseline.value:.2f}x{noise})"
