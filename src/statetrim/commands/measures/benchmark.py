"""statetrim benchmark"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .. import arguments, checks, terminal
from ..app import app
from ..arguments import Device, DeviceMap, Dtype, FamilyFile, Json, MaxMemory

if TYPE_CHECKING:
    from ...artifacts.timings import Timings


@app.command()
def benchmark(
    models: Annotated[list[str], typer.Argument(help="Checkpoints to compare with the baseline.")],
    baseline: Annotated[str, typer.Option(help="The model before the cut.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="JSON file to write.")],
    batch_sizes: Annotated[
        str | None,
        typer.Option(
            help="Batch sizes, such as 1,16,64; on a GPU 32 by default, as in the paper.",
            callback=checks.token_counts,
        ),
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(
            help="Tokens per prompt, such as 256,2k; on a GPU 2k by default.",
            callback=checks.token_counts,
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(help="Rounds per model; the models take turns.")] = 7,
    dtype: Dtype = None,
    device: Device = None,
    device_map: DeviceMap = None,
    max_memory: MaxMemory = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help="'vllm': measure a vLLM server, started on the loopback address, instead.",
            callback=checks.one_of("vllm"),
        ),
    ] = None,
    engine_python: Annotated[
        Path | None, typer.Option(help="Python executable of vLLM's environment.")
    ] = None,
    requests: Annotated[
        int, typer.Option(help="With --engine: number of concurrent requests.")
    ] = 64,
    memory_gib: Annotated[float, typer.Option(help="With --engine: cache memory in GiB.")] = 0.25,
    prefix_caching: Annotated[
        bool, typer.Option("--prefix-caching", help="With --engine: keep vLLM's prefix caching on.")
    ] = False,
    family: FamilyFile = None,
    as_json: Json = False,
) -> None:
    """Compare the speed of models, or count how many sequences a vLLM server holds."""
    arguments.check_output_free(output)
    from ...benchmarking.benchmark import benchmark as run
    from ..progress import show_progress

    sizes = (
        None if batch_sizes is None else list(map(arguments.parse_count, batch_sizes.split(",")))
    )
    opened = [arguments.open_model(model, family) for model in (baseline, *models)]
    with show_progress("loading") as progress:
        timings = run(
            opened[1:],
            baseline=opened[0],
            batches=sizes,
            lengths=None if lengths is None else lengths.split(","),
            rounds=rounds,
            dtype=dtype,
            device=device,
            device_map=device_map,
            max_memory=max_memory,
            engine=engine,
            engine_python=engine_python,
            requests=requests,
            memory_gib=memory_gib,
            prefix_caching=prefix_caching,
            out=output,
            progress=progress,
        )
    show_timings(timings, str(output), as_json=as_json)


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
