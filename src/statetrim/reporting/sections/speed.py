"""What serving it takes, as it was timed."""

from collections.abc import Iterator

from ...artifacts.timings import Timing, Timings
from ...maths.formatting import quantity
from ...maths.units import is_number
from ..document import Block, Missing, Table, Text
from ..findings import Findings
from ..names import names

TITLE = "Speed"


def blocks(found: Findings) -> Iterator[Block]:
    """Medians of each figure by model, with the ratio to the original."""
    timings = found.timings
    if timings is None:
        words = names(found)
        yield Missing(
            "Speed was not measured. Smaller heads save memory traffic; whether they save time "
            "depends on the kernels, so measure where you serve.",
            [f"statetrim benchmark {words.small} --baseline {words.model} -o timings.json"],
        )
        return
    device, clock = (timings.lineage.get(name) for name in ("device", "clock"))
    yield Text(
        f"Measured on {device or 'a machine the timings do not name'}"
        f"{f', {clock}' if clock else ''}; other machines and kernels differ."
    )
    rows = dict.fromkeys((r.metric, r.batch, r.length) for r in timings.records)
    yield Table(
        ("figure", "batch", "length", *timings.models),
        [
            (
                f"{metric}, {_unit(timings, metric)}",
                "" if batch is None else str(batch),
                "" if length is None else str(length),
                *(_cell(timings, model, (metric, batch, length)) for model in timings.models),
            )
            for metric, batch, length in rows
        ],
        caption=f"Medians; in brackets the ratio to {timings.baseline}, taken round by round",
    )


def _unit(timings: Timings, metric: str) -> str:
    return next(record.unit for record in timings.records if record.metric == metric)


def _cell(timings: Timings, model: str, which: tuple[str, int | None, int | None]) -> str:
    record: Timing | None = next(
        (r for r in timings.records if r.model == model and (r.metric, r.batch, r.length) == which),
        None,
    )
    if record is None or not is_number(record.value):
        return ""
    value = quantity(record.value)
    ratio = record.ratio if is_number(record.ratio) else None
    return value if ratio is None else f"{value} ({ratio:.2f}x)"
