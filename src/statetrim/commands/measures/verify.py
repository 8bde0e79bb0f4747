"""statetrim verify"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .. import arguments, checks, terminal
from ..app import app
from ..arguments import FamilyFile, Json

if TYPE_CHECKING:
    from rich.table import Table

    from ...artifacts.verification import Verification
    from ...artifacts.verification.agreement import Agreement


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
    from ...storage.output import run_and_save
    from ...verification.verify import verify as run
    from ..progress import show_progress

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


COLUMNS = ("choices equal", "loss, points", "largest gap")


def show_verification(verification: Verification, output: str, *, as_json: bool) -> None:
    """Print how often the engine and transformers agree, notes and faults."""
    if as_json:
        terminal.print_json(verification.as_json() | {"output": output})
        return
    if verification.agreements:
        terminal.print_table(_table(verification))
    for model, notes in verification.notes.items():
        for note in notes:
            terminal.print_text(f"note, {model}: {note}")
    for model, faults in verification.faults.items():
        for fault in faults:
            terminal.print_text(f"fault, {model}: {fault}", "bold red")
    if not verification.faults:
        terminal.print_text("no fault found", "bold green")
    terminal.print_text(
        "losses against the original, intervals of 95%, paired by sequence; gap: the logits by "
        f"which transformers preferred another token; written to {output}"
    )


def _table(verification: Verification) -> Table:
    from rich.table import Table

    table = Table(
        title=f"{verification.version}, {verification.dtype}, compared with transformers",
        title_justify="left",
    )
    table.add_column("model", overflow="fold")
    table.add_column("tokens")
    for name in COLUMNS:
        table.add_column(name, justify="right")
    for agreement in verification.agreements:
        table.add_row(
            agreement.model,
            agreement.kind,
            f"{sum(agreement.agreed):,} of {sum(agreement.places):,}",
            _loss_text(verification, agreement),
            f"{agreement.largest_gap:.2g}",
        )
    return table


def _loss_text(verification: Verification, agreement: Agreement) -> str:
    """What agreement a cut lost against the original, in points; empty for the original."""
    if agreement.model == verification.models[0]:
        return ""
    change = verification.agreement_change(agreement.model, agreement.kind)
    if change is None:
        return ""
    loss = -change
    return f"{loss.estimate:+.2f} ({loss.low:+.2f} to {loss.high:+.2f})"
