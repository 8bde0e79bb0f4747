"""Measured speed and memory of serving."""

from collections.abc import Iterator

from ..commands import missing
from ..document import Block, Table, Text
from ..findings import Findings

TITLE = "Speed"


def blocks(findings: Findings) -> Iterator[Block]:
    """A table of medians by metric and model, with the ratio to the original."""
    timings = findings.timings
    if timings is None:
        yield missing(
            findings,
            "Speed was not measured. Smaller heads save memory traffic; whether they save time "
            "depends on the kernels, so measure where you serve.",
            "statetrim benchmark {cut} --baseline {model} -o timings.json",
        )
        return
    device, clock = timings.lineage.get("device"), timings.lineage.get("clock")
    yield Text(
        f"Measured on {device or 'a machine the timings do not name'}"
        f"{f', {clock}' if clock else ''}; other machines and kernels differ."
    )
    table = timings.table()
    yield Table(
        ("figure", *table.header[1:]),
        table.rows,
        caption=f"Medians; in brackets the ratio to that of {timings.baseline}. Within noise: the "
        f"rounds do not agree on which model is faster",
    )
