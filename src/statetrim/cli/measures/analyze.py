"""statetrim analyze"""

from pathlib import Path
from typing import Annotated, Any

import typer

from ...errors import StatetrimError
from .. import arguments
from ..app import app
from ..arguments import FamilyFile, Json, Model

WINDOW = 256  # tokens of one that --sensitivity measures


@app.command()
def analyze(
    model: Model,
    text: Annotated[
        str,
        typer.Option(help="A .txt, .jsonl or .parquet file, a folder of them, or a hub dataset."),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="Where the JSON is written.")],
    tokens: Annotated[str, typer.Option(help="How many tokens to run, such as 16k.")] = "16k",
    baseline: Annotated[
        str | None, typer.Option(help="The model before the cut, run on the same text.")
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Draw PNG and SVG pictures into this directory.")
    ] = None,
    length: Annotated[int, typer.Option(help="Tokens per sequence.")] = 2048,
    every: Annotated[
        str, typer.Option(help="Look at states every 'chunk' (64 tokens), 'token', or 2 to 32.")
    ] = "chunk",
    burn_in: Annotated[
        int, typer.Option(help="First tokens of a sequence left out of spectra and means.")
    ] = 128,
    batch_size: Annotated[int, typer.Option(help="Sequences per forward pass.")] = 1,
    skip: Annotated[str, typer.Option(help="Tokens of the text to pass over first.")] = "0",
    sensitivity: Annotated[
        bool,
        typer.Option(
            "--sensitivity", help="Cut each layer alone instead: which one carries recall?"
        ),
    ] = False,
    widths: Annotated[
        str, typer.Option(help="Channels that stay in the layer that is cut, with --sensitivity.")
    ] = "0.5,0.25",
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on after an interruption, with --sensitivity.")
    ] = False,
    layerwise: Annotated[
        bool, typer.Option("--layerwise", help="Stream weights from disk, with --sensitivity.")
    ] = False,
    family: FamilyFile = None,
    as_json: Json = False,
) -> None:
    """Show how full the state of every layer and head is, on a text, or what each layer carries."""
    if output.suffix != ".json":
        raise StatetrimError(f"{output} must end in .json; arrays go beside it as .safetensors")
    for path in (output, output.with_suffix(".safetensors")):
        arguments.refuse_existing(path)
    if sensitivity:
        if baseline:
            raise StatetrimError("--sensitivity is of one model; leave out --baseline")
        options = {"skip": arguments.count(skip), "resume": resume, "layerwise": layerwise}
        options |= {"batch_size": batch_size, "windows": arguments.count(tokens) // WINDOW}
        _sensitivity(
            model, family, text, arguments.names(widths), output, figures, as_json, options
        )
        return
    from ...analysis.analyze import analyze as run
    from ...console.measures.analyze import show_analysis
    from ...console.progress import shown

    if figures:
        # Before the work: matplotlib may be absent.
        from ...reporting.figure_files import save_all
        from ...reporting.rank_pictures import sheets
    opened = arguments.open_model(model, family)
    with shown("analysing") as progress:
        found = run(
            opened,
            text,
            tokens=arguments.count(tokens),
            length=length,
            every=int(every) if every.isdecimal() and len(every) < 4 else every,  # type: ignore[arg-type]
            burn_in=burn_in,
            batch_size=batch_size,
            skip=arguments.count(skip),
            baseline=arguments.open_model(baseline, family) if baseline else None,
            progress=progress,
        )
    found.save(output)
    drawn = []
    if figures:
        before = {"before": found.baseline} if found.baseline else {}
        label = "after" if found.baseline else opened.path.name
        drawn = save_all(sheets({**before, label: found}), figures)
    show_analysis(found, str(output), drawn, as_json=as_json)


def _sensitivity(
    model: str,
    family: Path | None,
    text: str,
    widths: list[str],
    output: Path,
    figures: Path | None,
    as_json: bool,
    options: dict[str, Any],
) -> None:
    from ...console.measures.sensitivity import show_sensitivity
    from ...console.progress import shown
    from ...pipelines.sensitivity import sensitivity as run

    if figures:
        from ...reporting.figure_files import save_all
        from ...reporting.sensitivity_pictures import sheet
    opened = arguments.open_model(model, family)
    with shown("cutting one layer after the other") as progress:
        found = run(opened, text, widths=widths, out=output, progress=progress, **options)
    drawn = save_all({"sensitivity": sheet(found)}, figures) if figures else []
    show_sensitivity(found, str(output), drawn, as_json=as_json)
