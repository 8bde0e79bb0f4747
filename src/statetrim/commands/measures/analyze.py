"""statetrim analyze"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...analysis.options import AnalyzeOptions
from ...common_options import parse_names
from ...errors import StatetrimError
from ...options import as_record, derive
from .. import arguments, terminal
from ..arguments import FamilyFile, Json, Model
from ..command import command

if TYPE_CHECKING:
    from ...artifacts.analysis import Analysis
    from ...storage.checkpoint import Checkpoint

SENSITIVITY_WINDOW = 256  # tokens per window of text that --sensitivity measures

Output = Annotated[Path, typer.Option("-o", "--output", help="JSON file to write.")]
Figures = Annotated[Path | None, typer.Option(help="Directory for PNG and SVG figures.")]
Sensitivity = Annotated[
    bool,
    typer.Option(
        "--sensitivity", help="Instead, cut each layer alone and measure what text and recall lose."
    ),
]
Widths = Annotated[
    str, typer.Option(help="With --sensitivity: channels to keep in the layer that is cut.")
]


@command(AnalyzeOptions)
def analyze(
    model: Model,
    output: Output,
    options: AnalyzeOptions,
    figures: Figures = None,
    sensitivity: Sensitivity = False,
    widths: Widths = "0.5,0.25",
    family: FamilyFile = None,
    as_json: Json = False,
) -> None:
    if output.suffix != ".json":
        raise StatetrimError(
            f"{output} must end in .json; arrays are written next to it as .safetensors"
        )
    if sensitivity:
        arguments.check_output_free(output)
        if options.baseline is not None:
            raise StatetrimError("--sensitivity is of one model; leave out --baseline")
        if options.state_dtype != "float32":
            raise StatetrimError("--sensitivity has float32 states; leave out --state-dtype")
        opened = arguments.open_model(model, family)
        _run_sensitivity(opened, options, parse_names(widths), output, figures, as_json)
        return
    if options.baseline is not None:
        baseline = arguments.open_model(str(options.baseline), family)
        options = replace(options, baseline=baseline)
    _run_utilization(arguments.open_model(model, family), options, output, figures, as_json)


def _run_utilization(
    model: Checkpoint,
    options: AnalyzeOptions,
    output: Path,
    figures: Path | None,
    as_json: bool,
) -> None:
    """Measure the effective rank of the states, write it, and draw it if `figures` is given."""
    from ...analysis.analyze import analyze as run
    from ...artifacts.analysis import Analysis
    from ...storage.models import as_checkpoint
    from ...storage.output import open_output
    from ..progress import show_progress

    files = {"analysis.json": output, "analysis.safetensors": output.with_suffix(".safetensors")}
    if figures:
        # Imported before the work starts: matplotlib may be missing.
        from ...reporting.figure_files import SUFFIXES, save_all
        from ...reporting.rank_pictures import SHEET_NAMES, sheets

        names = [f"{sheet}.{suffix}" for sheet in SHEET_NAMES for suffix in SUFFIXES]
        files |= {f"figures/{name}": figures / name for name in names}
    digests = [model.digest]
    if options.baseline is not None:
        digests.append(as_checkpoint(options.baseline).digest)
    record = {
        "format": "statetrim analyze",
        "models": digests,
        "figures": str(figures),
        "options": as_record(options),
    }
    with open_output(output, "job.json", record, files=files) as work:
        if not work.done:
            with show_progress("analysing") as progress:
                analysis = run.run(model, replace(options, progress=progress))
            analysis.save(work.path / "analysis.json")
            if figures:
                compared = {"before": analysis.baseline} if analysis.baseline else {}
                label = "after" if analysis.baseline else model.name
                save_all(sheets({**compared, label: analysis}), work.path / "figures")
            work.publish()
    figure_files = [path for path in list(files.values())[2:] if path.exists()]
    show_analysis(Analysis.load(output), str(output), figure_files, as_json=as_json)


def _run_sensitivity(
    model: Checkpoint,
    options: AnalyzeOptions,
    widths: list[str],
    output: Path,
    figures: Path | None,
    as_json: bool,
) -> None:
    """Cut each layer alone, measure the loss, write it, and draw it if `figures` is given."""
    from ...maths.units import parse_token_count
    from ...pipelines.options import SensitivityOptions
    from ...pipelines.sensitivity import sensitivity as run
    from ...serving.capacity.parts import Paging
    from ..progress import show_progress
    from .sensitivity import show_sensitivity

    windows = parse_token_count(options.tokens) // SENSITIVITY_WINDOW
    with show_progress("cutting one layer after the other") as progress:
        chosen = derive(
            SensitivityOptions,
            options,
            widths=widths,
            windows=windows,
            out=output,
            figures=figures,
            progress=progress,
        )
        result = run.run(model, chosen)
    figure_files = (
        [figures / f"sensitivity.{suffix}" for suffix in ("png", "svg")] if figures else []
    )
    kv_cache = model.family.kv_cache_size(model.config, model.geometry)
    paging = Paging.of(model.geometry, kv_cache.layers if kv_cache else 0)
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
