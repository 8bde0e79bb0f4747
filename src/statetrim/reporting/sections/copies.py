"""Stored copies of states: bytes against loss."""

from collections.abc import Iterator

from ..commands import missing
from ..document import Block, Table, Text
from ..findings import Findings

TITLE = "Stored copies"


def blocks(findings: Findings) -> Iterator[Block]:
    """A row per code; without a measurement, a `Missing` with the command for it."""
    snapshots = findings.snapshots
    if snapshots is None:
        yield missing(
            findings,
            "Stored copies of states (prefix caches, saved prompts) were not measured.",
            "statetrim snapshot {model} --text {text} -o snapshots.json",
        )
        return
    lengths = [f"{100 * share:.1f} % after {n} tokens" for n, share in snapshots.lengths.items()]
    yield Text(
        f"Codes named “within” bound the relative error of every head. "
        f"Within {snapshots.tolerance:g}: {', '.join(lengths)}."
    )
    table = snapshots.table()
    yield Table(table.header, table.rows, caption="A copy of one sequence's states, in KiB")
