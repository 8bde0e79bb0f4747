"""statetrim calibrate"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...defaults import RECALL_SHARE
from ...errors import StatetrimError
from .. import arguments, checks, terminal
from ..app import app
from ..arguments import Device, DeviceMap, Dtype, FamilyFile, Json, MaxMemory, Model

if TYPE_CHECKING:
    from ...artifacts.statistics import Statistics
    from ...storage.checkpoint import Checkpoint


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
    from ...runtime.distributed import DistributedContext
    from ..progress import show_progress

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


NORM_EPS = 1e-6


def show_statistics(
    statistics: Statistics, model: Checkpoint, output: str, *, as_json: bool
) -> None:
    """Print the tokens and sums, and a note if outputs are small compared with the norm's eps."""
    from rich.table import Table

    tokens = next(iter(statistics.layers.values())).tokens
    mean_squares = []
    for layer in statistics.layers.values():
        if layer.output_square is not None:
            mean_squares.append(float(layer.output_square.mean()) / tokens)
    generated_tokens = {}
    for source, layers in statistics.generated.items():
        generated_tokens[source] = next(iter(layers.values())).tokens
    if as_json:
        terminal.print_json(
            {
                "statistics": output,
                "tokens": tokens,
                "generated": generated_tokens,
                "parts": sorted(statistics.sum_names),
                "output_energy": mean_squares,
            }
        )
        return
    table = Table(title="Statistics", title_justify="left", show_header=False)
    table.add_row("tokens", f"{tokens:,}")
    for name, count in generated_tokens.items():
        table.add_row(f"tokens of {name}", f"{count:,}")
    table.add_row("layers x key heads", f"{len(statistics.layers)} x {model.geometry.num_k_heads}")
    table.add_row("sums", ", ".join(sorted(statistics.sum_names)))
    table.add_row("written to", output)
    terminal.print_table(table)
    if mean_squares and min(mean_squares) < NORM_EPS:
        small_layers = sum(mean_square < NORM_EPS for mean_square in mean_squares)
        terminal.note(
            f"in {small_layers} of {len(mean_squares)} layers the output before its norm is small "
            f"(mean square {min(mean_squares):.2g}, below the norm's eps of about {NORM_EPS:g}): "
            "there the norm does not undo the rescaling of a cut, which may cost more; compare "
            "with a random cut"
        )
