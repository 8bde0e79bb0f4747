"""Console output of `benchmark`."""

from ...artifacts.timings import Timings
from .. import terminal


def show_timings(timings: Timings, output: str, *, as_json: bool) -> None:
    """Print the table of timings, and what vLLM logged about its cache."""
    if as_json:
        terminal.print_json(timings.as_json() | {"output": output})
        return
    terminal.print_artifact_table(timings.table(), left_columns=1)
    for label, lines in timings.lineage.get("log", {}).items():
        for line in lines:
            terminal.print_text(f"{label}: {line}")
    terminal.print_text(f"medians (ratio to that of the first model); written to {output}")
