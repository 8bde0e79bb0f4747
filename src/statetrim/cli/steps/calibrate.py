"""statetrim calibrate"""

from pathlib import Path
from typing import Annotated

import typer

from ...defaults import RECALL_SHARE
from ...errors import StatetrimError
from .. import arguments, checks
from ..app import app
from ..arguments import Device, DeviceMap, Dtype, FamilyFile, Json, MaxMemory, Model

Text = Annotated[
    str,
    typer.Option(
        help="A .txt, .jsonl or .parquet file, a folder of them, or a hub dataset.",
        callback=checks.text_source,
    ),
]
Output = Annotated[Path, typer.Option("-o", "--output", help="File to write the statistics to.")]
Methods = Annotated[
    str | None,
    typer.Option(
        "--for",
        help="Selection methods to collect statistics for, such as drrqr,grad.",
        callback=checks.methods,
    ),
]
Original = Annotated[
    str | None,
    typer.Option(help="The model before the cut; collects the statistics that refit needs."),
]
Tokens = Annotated[
    str, typer.Option(help="Number of tokens to run, such as 256k.", callback=checks.token_counts)
]
Length = Annotated[int, typer.Option(help="Tokens per sequence.", callback=checks.at_least_one)]
BatchSize = Annotated[
    int, typer.Option(help="Sequences per forward pass.", callback=checks.at_least_one)
]
Skip = Annotated[
    str, typer.Option(help="Tokens to skip at the start of the text.", callback=checks.token_counts)
]
Recall = Annotated[
    float,
    typer.Option(
        help="Fraction of the tokens that are generated recall sequences.",
        callback=checks.fraction,
    ),
]
Random = Annotated[
    float,
    typer.Option(help="Fraction of the tokens that are drawn at random.", callback=checks.fraction),
]
Echo = Annotated[
    float,
    typer.Option(
        help="Fraction of the tokens that are passages of the text, each given twice.",
        callback=checks.fraction,
    ),
]
Seed = Annotated[
    int, typer.Option(help="Random seed of the generated sequences.", callback=checks.seed)
]
Layerwise = Annotated[
    bool,
    typer.Option("--layerwise", help="Stream weights from disk, for models larger than memory."),
]


@app.command()
def calibrate(
    model: Model,
    text: Text,
    output: Output,
    methods: Methods = None,
    original: Original = None,
    tokens: Tokens = "256k",
    length: Length = 512,
    batch_size: BatchSize = 8,
    skip: Skip = "0",
    recall: Recall = RECALL_SHARE,
    random: Random = 0.0,
    echo: Echo = 0.0,
    seed: Seed = 0,
    layerwise: Layerwise = False,
    device: Device = None,
    device_map: DeviceMap = None,
    max_memory: MaxMemory = None,
    dtype: Dtype = None,
    family: FamilyFile = None,
    as_json: Json = False,
) -> None:
    """Run text through a model and collect the statistics that selection needs."""
    from ...calibration.calibrate import calibrate as run
    from ...console.progress import show_progress
    from ...console.steps.calibrate import show_statistics
    from ...runtime.distributed import DistributedContext

    if original and methods:
        raise StatetrimError("with --original the sums are those of a refit; leave out --for")
    opened = arguments.open_model(model, family)
    with show_progress("calibrating") as progress:
        statistics = run(
            opened,
            text,
            original=arguments.open_model(original, family) if original else None,
            tokens=tokens,
            methods=arguments.parse_names(methods) if methods else None,
            length=length,
            batch_size=batch_size,
            skip=skip,
            recall=recall,
            random=random,
            echo=echo,
            seed=seed,
            layerwise=layerwise,
            device=device,
            device_map=device_map,
            max_memory=max_memory,
            dtype=dtype,
            out=output,
            progress=progress,
        )
    if DistributedContext.current().rank == 0:
        show_statistics(statistics, opened, str(output), as_json=as_json)
