"""What a person sees of `benchmark`."""

from rich.table import Table

from ...artifacts.timings import Timing, Timings
from ...maths.formatting import quantity
from .. import terminal


def show_timings(timings: Timings, where: str, *, as_json: bool) -> None:
    if as_json:
        terminal.show_json(timings.as_json() | {"output": where})
        return
    table = Table(title="Timings", title_justify="left")
    for name in ("", "batch", "length"):
        table.add_column(name, justify="right" if name else "left")
    for model in timings.models:
        table.add_column(model, justify="right", overflow="fold")
    rows: dict[tuple[str, int | None, int | None], dict[str, Timing]] = {}
    for record in timings.records:
        rows.setdefault((record.metric, record.batch, record.length), {})[record.model] = record
    for (metric, batch, length), cells in rows.items():
        found = [cells.get(model) for model in timings.models]
        unit = next(record.unit for record in found if record)
        first = found[0].value if found[0] else 0.0
        table.add_row(
            f"{metric}, {unit}",
            "" if batch is None else str(batch),
            "" if length is None else str(length),
            *[_timing_cell(record, first, index) for index, record in enumerate(found)],
        )
    terminal.out.print(table)
    for label, lines in timings.lineage.get("log", {}).items():
        for line in lines:
            terminal.say(f"{label}: {line}")
    terminal.say(f"medians, (ratio to the first model); written to {where}")


def _timing_cell(record: Timing | None, first: float, index: int) -> str:
    if record is None:
        return ""
    value = quantity(record.value)
    ratio = record.ratio
    if ratio is None and index and first:
        ratio = record.value / first
    return value if ratio is None else f"{value} ({ratio:.2f}x)"
