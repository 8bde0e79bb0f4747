"""statetrim verify"""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from .. import arguments, checks
from ..app import app
from ..arguments import FamilyFile, Json


@app.command()
def verify(
    models: Annotated[list[str], typer.Argument(help="Cut models to run.")],
    baseline: Annotated[str, typer.Option(help="The model before the cut.")],
    engine: Annotated[str, typer.Option(help="mlx, vllm or llamacpp.")],
    engine_python: Annotated[
        Path, typer.Option(help="Python executable of the engine's environment.")
    ],
    text: Annotated[
        str,
        typer.Option(
            help="A .txt, .jsonl or .parquet file, a folder of them, or a hub dataset.",
            callback=checks.text_source,
        ),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="JSON file to write.")],
    count: Annotated[int, typer.Option(help="Number of sequences to compare.")] = 24,
    length: Annotated[int, typer.Option(help="Tokens per sequence.")] = 200,
    generate: Annotated[
        int, typer.Option(help="Tokens to generate after the first half of each sequence.")
    ] = 32,
    skip: Annotated[
        str,
        typer.Option(help="Tokens to skip at the start of the text.", callback=checks.token_counts),
    ] = "0",
    dtype: Annotated[
        str | None,
        typer.Option(help="float32, float16 or bfloat16; by default as stored (vLLM: bfloat16)."),
    ] = None,
    engine_option: Annotated[
        list[str] | None,
        typer.Option(help="NAME=VALUE for the engine, such as tensor_parallel_size=2."),
    ] = None,
    seconds: Annotated[float, typer.Option(help="Time limit per model, in seconds.")] = 3600.0,
    family: FamilyFile = None,
    as_json: Json = False,
) -> None:
    """Run cut models and their original in an engine, and compare its output with transformers."""
    arguments.check_output_free(output)
    options = arguments.parse_named_values(
        engine_option or [], "--engine-option", "tensor_parallel_size=2"
    )
    from ...artifacts.verification import Verification
    from ...console.measures.verify import show_verification
    from ...console.progress import show_progress
    from ...storage.output import run_and_save
    from ...verification.verify import verify as run

    cuts = [arguments.open_model(model, family) for model in models]
    original = arguments.open_model(baseline, family)
    settings: dict[str, Any] = {
        "engine": engine,
        "text": text,
        "count": count,
        "length": length,
        "generate": generate,
        "skip": arguments.parse_count(skip),
        "dtype": dtype,
        "options": options,
    }

    def run_verification(directory: Path | None) -> Verification:
        with show_progress() as progress:
            return run(
                cuts,
                baseline=original,
                python=engine_python,
                seconds=seconds,
                progress=progress,
                **settings,
            )

    record = {
        "format": "statetrim verify",
        "models": [model.digest for model in (original, *cuts)],
        **settings,
    }
    verification = run_and_save(output, record, run_verification, Verification.load)
    show_verification(verification, str(output), as_json=as_json)
    if verification.faults:
        sys.exit(1)
