"""statetrim benchmark"""

from pathlib import Path
from typing import Annotated

import typer

from .. import arguments, checks
from ..app import app
from ..arguments import Device, DeviceMap, Dtype, FamilyFile, Json, MaxMemory


@app.command()
def benchmark(
    models: Annotated[list[str], typer.Argument(help="Checkpoint directories to time.")],
    baseline: Annotated[str, typer.Option(help="The model before the cut.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Where the JSON is written.")],
    batch_sizes: Annotated[
        str | None,
        typer.Option(help="Such as 1,16,64 (GPU: 32, as in the paper).", callback=checks.tokens),
    ] = None,
    lengths: Annotated[
        str | None,
        typer.Option(help="Tokens of a prompt, such as 256,2k (GPU: 2k).", callback=checks.tokens),
    ] = None,
    rounds: Annotated[int, typer.Option(help="Turns that each model takes.")] = 7,
    dtype: Dtype = None,
    device: Device = None,
    device_map: DeviceMap = None,
    max_memory: MaxMemory = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help="'vllm' starts a vLLM server on loopback instead.", callback=checks.one_of("vllm")
        ),
    ] = None,
    engine_python: Annotated[
        Path | None, typer.Option(help="Python of the environment that vLLM is in.")
    ] = None,
    requests: Annotated[int, typer.Option(help="With --engine: sequences sent at once.")] = 64,
    memory_gib: Annotated[float, typer.Option(help="With --engine: its cache.")] = 0.25,
    prefix_caching: Annotated[
        bool, typer.Option("--prefix-caching", help="With --engine: as vLLM has it by default.")
    ] = False,
    family: FamilyFile = None,
    as_json: Json = False,
) -> None:
    """Time models in turns, or count how many sequences a vLLM server holds."""
    arguments.refuse_existing(output)
    from ...benchmarking.benchmark import benchmark as run
    from ...console.measures.benchmark import show_timings
    from ...console.progress import shown

    sizes = None if batch_sizes is None else list(map(arguments.count, batch_sizes.split(",")))
    opened = [arguments.open_model(model, family) for model in (baseline, *models)]
    with shown("loading") as progress:
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
