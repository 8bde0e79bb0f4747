"""statetrim benchmark"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ...benchmarking.options import BenchmarkOptions
from .. import arguments, terminal
from ..arguments import FamilyFile, Json, Models
from ..command import command

if TYPE_CHECKING:
    from ...artifacts.timings import Timings


@command(BenchmarkOptions)
def benchmark(
    models: Models, options: BenchmarkOptions, family: FamilyFile = None, as_json: Json = False
) -> None:
    arguments.check_output_free(options.out)
    from ...benchmarking.benchmark import benchmark as run
    from ..progress import show_progress

    baseline = arguments.open_model(str(options.baseline), family)
    opened = [arguments.open_model(model, family) for model in models]
    with show_progress("loading") as progress:
        timings = run.run(opened, replace(options, baseline=baseline, progress=progress))
    show_timings(timings, str(options.out), as_json=as_json)


def show_timings(timings: Timings, output: str, *, as_json: bool) -> None:
    """Print the table of timings, and what vLLM logged about its cache."""
    if as_json:
        terminal.print_json(timings.as_json() | {"output": output})
        return
    table = timings.table()
    terminal.print_table(table.title, table.header, table.rows)
    for label, lines in timings.lineage.get("log", {}).items():
        for line in lines:
            terminal.print_text(f"{label}: {line}")
    terminal.print_text(f"medians (ratio to that of the first model); written to {output}")
