"""statetrim benchmark"""

from ...benchmarking.options import BenchmarkOptions
from .. import arguments, terminal
from ..arguments import FamilyFile, Json, Models
from ..command import command


@command(BenchmarkOptions)
def benchmark(
    models: Models, options: BenchmarkOptions, family: FamilyFile = None, as_json: Json = False
) -> None:
    arguments.check_output_free(options.out)
    from ...benchmarking.benchmark import benchmark as run
    from ..progress import run_with_progress

    baseline = arguments.open_model(str(options.baseline), family)
    opened = [arguments.open_model(model, family) for model in models]
    timings = run_with_progress(run, opened, options, baseline=baseline)
    if as_json:
        terminal.print_json(timings.as_json() | {"output": str(options.out)})
        return
    terminal.print_table(*timings.table())
    terminal.print_text(f"medians (ratio to that of the first model); written to {options.out}")
