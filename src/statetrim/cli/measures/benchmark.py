"""statetrim benchmark"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from ...errors import StatetrimError
from .. import arguments
from ..app import app
from ..arguments import FamilyFile, Json


@app.command()
def benchmark(
    models: Annotated[list[str], typer.Argument(help="Checkpoint directories to time.")],
    baseline: Annotated[str, typer.Option(help="The model before the cut.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Where the JSON is written.")],
    batch_sizes: Annotated[
        str | None, typer.Option(help="Such as 1,16,64 (GPU: 32, as in the paper).")
    ] = None,
    lengths: Annotated[
        str | None, typer.Option(help="Tokens of a prompt, such as 256,2k (GPU: 2k).")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Turns that each model takes.")] = 7,
    dtype: Annotated[
        str | None, typer.Option(help="float32, float16 or bfloat16; else as stored.")
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help="'vllm' starts a vLLM server on loopback instead.")
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
    from ...benchmarking import benchmark as benchmarking
    from ...benchmarking import served as load_testing
    from ...benchmarking.vllm_server import Load
    from ...console.measures.benchmark import show_timings
    from ...console.progress import shown
    from ...maths.units import token_count

    arguments.refuse_existing(output)
    sizes = None if batch_sizes is None else [token_count(part) for part in batch_sizes.split(",")]
    tokens = None if lengths is None else [token_count(part) for part in lengths.split(",")]
    if dtype not in (None, "float32", "float16", "bfloat16"):
        raise StatetrimError(f"--dtype is float32, float16 or bfloat16, not {dtype!r}")
    if engine not in (None, "vllm"):
        raise StatetrimError(f"--engine is 'vllm', or left out for this process, not {engine!r}")
    opened = [arguments.open_model(model, family) for model in (baseline, *models)]
    with shown("loading") as progress:
        if engine:
            timings = load_testing.benchmark_served(
                opened[1:],
                baseline=opened[0],
                python=engine_python or Path(sys.executable),
                loads=[
                    Load(
                        requests=requests,
                        length=length,
                        memory=int(memory_gib * 2**30),
                        prefix_caching=prefix_caching,
                    )
                    for length in tokens or [1024]
                ],
                progress=progress,
            )
        else:
            timings = benchmarking.benchmark(
                opened[1:],
                baseline=opened[0],
                batches=sizes,
                lengths=tokens,
                rounds=rounds,
                dtype=dtype,
                progress=progress,
            )
    timings.save(output)
    show_timings(timings, str(output), as_json=as_json)
