"""statetrim verify"""

import sys
from typing import Annotated

import typer

from ...verification.options import VerifyOptions
from .. import arguments, terminal
from ..arguments import FamilyFile, Json
from ..command import command

Cuts = Annotated[list[str], typer.Argument(help="Cut models to run.")]


@command(VerifyOptions)
def verify(
    models: Cuts, options: VerifyOptions, family: FamilyFile = None, as_json: Json = False
) -> None:
    arguments.check_output_free(options.out)
    from ...artifacts.verification import agreement_table
    from ...verification.verify import verify as run
    from ..progress import run_with_progress

    cuts = [arguments.open_model(model, family) for model in models]
    original = arguments.open_model(str(options.baseline), family)
    verification = run_with_progress(run, cuts, options, baseline=original)
    if as_json:
        terminal.print_json(verification.as_json() | {"output": str(options.out)})
    else:
        if verification.agreements:
            terminal.print_table(*agreement_table(verification), left=(0, 1))
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
            f"which transformers preferred another token; written to {options.out}"
        )
    if verification.faults:
        sys.exit(1)
