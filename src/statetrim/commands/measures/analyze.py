"""statetrim analyze"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import StatetrimError
from .. import arguments, checks, terminal
from ..app import app
from ..arguments import Device, DeviceMap, Dtype, FamilyFile, Json, MaxMemory, Model

if TYPE_CHECKING:
    from ...artifacts.analysis import Analysis


SENSITIVITY_WINDOW = 256  # tokens per window of text that --sensitivity measures

Text = Annotated[
    str,
    typer.Option(
        help="A .txt, .jsonl or .parquet file, a folder of them, or a hub dataset.",
        callback=checks.text_source,
    ),
]
Output = Annotated[Path, typer.Option("-o", "--output", help="JSON file to write.")]
Tokens = Annotated[
    str, typer.Option(help="Number of tokens to run, such as 16k.", callback=checks.token_counts)
]
Baseline = Annotated[
    str | None, typer.Option(help="The model before the cut, run on the same text.")
]
Figures = Annotated[Path | None, typer.Option(help="Directory for PNG and SVG figures.")]
Length = Annotated[int, typer.Option(help="Tokens per sequence.")]
Every = Annotated[
    str,
    typer.Option(
        help="Sample states every 'chunk' (64 tokens), every 'token', or every 2 to 32 tokens."
    ),
]
BurnIn = Annotated[
    int,
    typer.Option(help="Tokens at the start of each sequence to leave out of spectra and means."),
]
BatchSize = Annotated[
    int, typer.Option(help="Sequences per forward pass.", callback=checks.at_least_one)
]
Skip = Annotated[
    str, typer.Option(help="Tokens to skip at the start of the text.", callback=checks.token_counts)
]
Sensitivity = Annotated[
    bool,
    typer.Option(
        "--sensitivity", help="Instead, cut each layer alone and measure what text and recall lose."
    ),
]
Widths = Annotated[
    str, typer.Option(help="With --sensitivity: channels to keep in the layer that is cut.")
]
StateDtype = Annotated[
    str,
    typer.Option(
        help="Store states in bfloat16, float16, float8_e4m3fn or int8, as an engine "
        "would, and analyze those."
    ),
]
Layerwise = Annotated[
    bool,
    typer.Option("--layerwise", help="Stream weights from disk, for models larger than memory."),
]


@app.command()
def analyze(
    model: Model,
    text: Text,
    output: Output,
    tokens: Tokens = "16k",
    baseline: Baseline = None,
    figures: Figures = None,
    length: Length = 2048,
    every: Every = "chunk",
    burn_in: BurnIn = 128,
    batch_size: BatchSize = 1,
    skip: Skip = "0",
    sensitivity: Sensitivity = False,
    widths: Widths = "0.5,0.25",
    state_dtype: StateDtype = "float32",
    layerwise: Layerwise = False,
    device: Device = None,
    device_map: DeviceMap = None,
    max_memory: MaxMemory = None,
    dtype: Dtype = None,
    family: FamilyFile = None,
    as_json: Json = False,
) -> None:
    """Measure the effective rank of every state, or how much each layer loses when it is cut
    alone."""
    placement: dict[str, Any] = {
        "layerwise": layerwise,
        "device": device,
        "device_map": device_map,
        "max_memory": max_memory,
        "dtype": dtype,
    }
    if output.suffix != ".json":
        raise StatetrimError(
            f"{output} must end in .json; arrays are written next to it as .safetensors"
        )
    if sensitivity:
        arguments.check_output_free(output)
        if baseline:
            raise StatetrimError("--sensitivity is of one model; leave out --baseline")
        if state_dtype != "float32":
            raise StatetrimError("--sensitivity has float32 states; leave out --state-dtype")
        from ...maths.units import parse_token_count

        options = {"skip": parse_token_count(skip), **placement}
        options |= {
            "batch_size": batch_size,
            "windows": parse_token_count(tokens) // SENSITIVITY_WINDOW,
        }
        _run_sensitivity(
            model, family, text, arguments.parse_names(widths), output, figures, as_json, options
        )
        return
    settings: dict[str, Any] = {
        "tokens": tokens,
        "length": length,
        "every": int(every) if every.isdecimal() and len(every) < 4 else every,
        "burn_in": burn_in,
        "batch_size": batch_size,
        "skip": skip,
        **({"state_dtype": state_dtype} if state_dtype != "float32" else {}),
    }
    _run_utilization(model, family, text, baseline, output, figures, as_json, settings, placement)


def _run_utilization(
    model: str,
    family: Path | None,
    text: str,
    baseline: str | None,
    output: Path,
    figures: Path | None,
    as_json: bool,
    options: dict[str, Any],
    placement: dict[str, Any],
) -> None:
    """Measure the effective rank of the states, write it, and draw it if `figures` is given."""
    from ...analysis.analyze import analyze as run
    from ...artifacts.analysis import Analysis
    from ...storage.output import open_output
    from ..progress import show_progress

    files = {"analysis.json": output, "analysis.safetensors": output.with_suffix(".safetensors")}
    if figures:
        # Imported before the work starts: matplotlib may be missing.
        from ...reporting.figure_files import SUFFIXES, save_all
        from ...reporting.rank_pictures import SHEET_NAMES, sheets

        names = [f"{sheet}.{suffix}" for sheet in SHEET_NAMES for suffix in SUFFIXES]
        files |= {f"figures/{name}": figures / name for name in names}
    opened = arguments.open_model(model, family)
    before = arguments.open_model(baseline, family) if baseline else None
    record = {
        "format": "statetrim analyze",
        "models": [checkpoint.digest for checkpoint in (opened, before) if checkpoint is not None],
        "text": text,
        "figures": str(figures),
        **options,
        **({"dtype": placement["dtype"]} if placement["dtype"] else {}),
    }
    with open_output(output, "job.json", record, files=files) as work:
        if not work.done:
            with show_progress("analysing") as progress:
                analysis = run(
                    opened, text, baseline=before, progress=progress, **options, **placement
                )
            analysis.save(work.path / "analysis.json")
            if figures:
                compared = {"before": analysis.baseline} if analysis.baseline else {}
                label = "after" if analysis.baseline else opened.name
                save_all(sheets({**compared, label: analysis}), work.path / "figures")
            work.publish()
    figure_files = [path for path in list(files.values())[2:] if path.exists()]
    show_analysis(Analysis.load(output), str(output), figure_files, as_json=as_json)


def _run_sensitivity(
    model: str,
    family: Path | None,
    text: str,
    widths: list[str],
    output: Path,
    figures: Path | None,
    as_json: bool,
    options: dict[str, Any],
) -> None:
    """Cut each layer alone, measure the loss, write it, and draw it if `figures` is given."""
    from ...pipelines.sensitivity import sensitivity as run
    from ...serving.capacity.parts import Paging
    from ..progress import show_progress
    from .sensitivity import show_sensitivity

    opened = arguments.open_model(model, family)
    options |= {"out": output, "figures": figures}
    with show_progress("cutting one layer after the other") as progress:
        result = run(opened, text, widths=widths, progress=progress, **options)
    figure_files = (
        [figures / f"sensitivity.{suffix}" for suffix in ("png", "svg")] if figures else []
    )
    kv_cache = opened.family.kv_cache_size(opened.config, opened.geometry)
    paging = Paging.of(opened.geometry, kv_cache.layers if kv_cache else 0)
    show_sensitivity(result, paging, str(output), figure_files, as_json=as_json)


def show_analysis(
    analysis: Analysis, output: str, figures: Sequence[Path], *, as_json: bool
) -> None:
    """Print a row per layer, narrow enough for a terminal of 80 columns."""
    from rich.table import Table

    if as_json:
        terminal.print_json(
            {
                "analysis": output,
                "figures": [str(path) for path in figures],
                **analysis.summary(),
                **({"baseline": analysis.baseline.summary()} if analysis.baseline else {}),
            }
        )
        return
    layer_table, baseline = analysis.table(), analysis.baseline
    *rows, means = layer_table.rows
    table = Table(title=layer_table.title, title_justify="left", show_footer=True)
    for name, mean in zip(layer_table.header, means, strict=True):
        table.add_column(
            name, mean, justify="left" if name == "heads" else "right", no_wrap=name == "heads"
        )
    for row in rows:
        table.add_row(*row)
    terminal.print_table(table)
    data, before = analysis.lineage["data"], f", before {baseline.max_rank}" if baseline else ""
    state_dtype = analysis.lineage.get("state_dtype")
    for line in (
        "used: effective rank of a state, of the largest possible rank "
        f"({analysis.max_rank}{before});",
        f"  mean over {data['count']} x {data['length']} tokens without the first "
        f"{analysis.burn_in}; heads: one bar each",
        *([f"states are stored in {state_dtype}, as an engine would"] if state_dtype else []),
        "κ: condition number, median head; filters: mean |cosine|, of queries, of keys",
        f"written to {output}" + (f", and {len(figures)} pictures" if figures else ""),
    ):
        terminal.print_text(line)
