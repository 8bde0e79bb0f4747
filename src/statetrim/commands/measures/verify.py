"""statetrim verify"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from ...verification.options import VerifyOptions
from .. import arguments, terminal
from ..arguments import FamilyFile, Json
from ..command import command

if TYPE_CHECKING:
    from ...artifacts.verification import Verification

Cuts = Annotated[list[str], typer.Argument(help="Cut models to run.")]


@command(VerifyOptions)
def verify(
    models: Cuts, options: VerifyOptions, family: FamilyFile = None, as_json: Json = False
) -> None:
    arguments.check_output_free(options.out)
    from ...verification.verify import verify as run
    from ..progress import show_progress

    cuts = [arguments.open_model(model, family) for model in models]
    original = arguments.open_model(str(options.baseline), family)
    with show_progress() as progress:
        verification = run.run(cuts, replace(options, baseline=original, progress=progress))
    show_verification(verification, str(options.out), as_json=as_json)
    if verification.faults:
        sys.exit(1)


def show_verification(verification: Verification, output: str, *, as_json: bool) -> None:
    """Print how often the engine and transformers agree, notes and faults."""
    if as_json:
        terminal.print_json(verification.as_json() | {"output": output})
        return
    if verification.agreements:
        _show_agreements(verification)
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


def _show_agreements(verification: Verification) -> None:
    from ...artifacts.verification import loss_text

    rows = []
    for agreement in verification.agreements:
        agreed = f"{sum(agreement.agreed):,} of {sum(agreement.places):,}"
        loss, gap = loss_text(verification, agreement), f"{agreement.largest_gap:.2g}"
        rows.append((agreement.model, agreement.kind, agreed, loss, gap))
    title = f"{verification.version}, {verification.dtype}, compared with transformers"
    header = ("model", "tokens", "choices equal", "loss, points", "largest gap")
    terminal.print_table(title, header, rows, left=(0, 1))
