"""statetrim analyze"""

from __future__ import annotations

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
    from ...artifacts.samples import ChangedLayers
    from ...maths.formatting import Table
    from ...storage.checkpoint import Checkpoint

SHARES = (0.5, 0.25)  # of the bytes, for which --sensitivity proposes widths by layer

Output = Annotated[Path, typer.Option("-o", "--output", help="JSON file to write.")]
ByLayer = Annotated[
    bool,
    typer.Option(
        "--sensitivity", help="Instead, cut each layer alone and measure what text and recall lose."
    ),
]
ByMemory = Annotated[
    bool,
    typer.Option(
        "--memory",
        help="Instead, let each layer alone forget, then all; measure what text and recall lose.",
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
    sensitivity: ByLayer = False,
    memory: ByMemory = False,
    widths: Widths = "0.5,0.25",
    family: FamilyFile = None,
    as_json: Json = False,
) -> None:
    if output.suffix != ".json":
        raise StatetrimError(
            f"{output} must end in .json; arrays are written next to it as .safetensors"
        )
    if sensitivity and memory:
        raise StatetrimError("--sensitivity and --memory are two measurements; run one at a time")
    if sensitivity or memory:
        arguments.check_output_free(output)
        for name in ("baseline", "state_dtype", "every", "burn_in"):
            if getattr(options, name) != getattr(AnalyzeOptions, name):
                flag, mode = name.replace("_", "-"), "memory" if memory else "sensitivity"
                raise StatetrimError(f"--{mode} does not use --{flag}; leave it out")
        opened = arguments.open_model(model, family)
        if memory:
            _run_memory(opened, options, output, as_json)
            return
        _run_sensitivity(opened, options, parse_names(widths), output, as_json)
        return
    if options.baseline is not None:
        baseline = arguments.open_model(str(options.baseline), family)
        options = replace(options, baseline=baseline)
    _run_utilization(arguments.open_model(model, family), options, output, as_json)


def _run_utilization(
    model: Checkpoint, options: AnalyzeOptions, output: Path, as_json: bool
) -> None:
    from ...analysis.analyze import analyze as run
    from ...artifacts.analysis import Analysis
    from ...storage.models import as_checkpoint
    from ...storage.output import run_and_save
    from ..progress import run_with_progress

    baseline = options.baseline
    models = [model] if baseline is None else [model, as_checkpoint(baseline)]
    record = {
        "format": "statetrim analyze",
        "models": [checkpoint.digest for checkpoint in models],
        "options": as_record(options),
    }
    analysis = run_and_save(
        output,
        record,
        lambda _: run_with_progress(run, model, options),
        Analysis.load,
        extra_files={"result.safetensors": output.with_suffix(".safetensors")},
    )
    if as_json:
        before = {"baseline": analysis.baseline.summary()} if analysis.baseline else {}
        terminal.print_json({"analysis": str(output), **analysis.summary(), **before})
        return
    _show_analysis(analysis)
    terminal.print_text(f"written to {output}")


def _show_analysis(analysis: Analysis) -> None:
    """Print a row per layer, narrow enough for a terminal of 80 columns."""
    table, baseline = analysis.table(), analysis.baseline
    terminal.print_table(*table, left=(table.header.index("heads"),))
    data, before = analysis.lineage["data"], f", before {baseline.max_rank}" if baseline else ""
    state_dtype = analysis.lineage.get("state_dtype")
    for line in (
        "used: effective rank of a state, of the largest possible rank "
        f"({analysis.max_rank}{before});",
        f"  mean over {data['count']} x {data['length']} tokens without the first "
        f"{analysis.burn_in}; heads: one bar each",
        *([f"states are stored in {state_dtype}, as an engine would"] if state_dtype else []),
        "κ: condition number, median head",
    ):
        terminal.print_text(line)


def _run_memory(model: Checkpoint, options: AnalyzeOptions, output: Path, as_json: bool) -> None:
    from ...analysis.memory import analyze_memory as run
    from ...analysis.options import MemoryOptions
    from ..progress import run_with_progress

    length = options.length or MemoryOptions.length
    chosen = derive(MemoryOptions, options, length=length, out=output)
    result = run_with_progress(run, model, chosen)
    _show_changes(result, result.table(), output, as_json)


def _run_sensitivity(
    model: Checkpoint,
    options: AnalyzeOptions,
    widths: list[str],
    output: Path,
    as_json: bool,
) -> None:
    from ...analysis.options import SensitivityOptions
    from ...maths.units import parse_token_count
    from ...pipelines.by_layer import allocate_for_engine
    from ...pipelines.sensitivity import sensitivity as run
    from ...serving.engines import counted_engines
    from ..progress import run_with_progress

    length = options.length or SensitivityOptions.length
    chosen = derive(
        SensitivityOptions,
        options,
        widths=widths,
        windows=parse_token_count(options.tokens) // length,
        length=length,
        out=output,
    )
    result = run_with_progress(run, model, chosen)
    _show_changes(result, result.table(), output, as_json)
    if as_json:
        return
    with_plugin = [engine for engine in counted_engines().values() if engine.plugin_types]
    for share in SHARES:
        for engine in sorted(with_plugin, key=lambda engine: engine.has_pages):
            budget = f"{share:.0%} of the bytes"
            if engine.has_pages:
                cache = f"As much of {engine.name}'s cache, with its plugin"
                budget = f"{cache}, as one shape of {share:.0%}"
            try:
                allocation = allocate_for_engine(model, result, share, engine)
            except StatetrimError:
                continue  # no widths fit
            terminal.print_text(
                f"{budget}, by layer (docs/widths-by-layer.md): --to {allocation}, which would "
                f"cost {allocation.cost:.3f} (nats and recall), if costs of layers add up"
            )


def _show_changes(result: ChangedLayers, table: Table, output: Path, as_json: bool) -> None:
    if as_json:
        rows = [dict(zip(table.header, row, strict=True)) for row in table.rows]
        terminal.print_json({"output": str(output), "finding": result.sentence, "rows": rows})
        return
    terminal.print_table(*table)
    terminal.print_text(result.sentence)
    loads = ", ".join(map(str, result.original.recalled_pair_counts))
    recall = f"recall in points, mean over {loads} pairs; " if loads else ""
    terminal.print_text(f"NLL in nats per token; {recall}± 95 % intervals")
    terminal.print_text(f"written to {output}")
