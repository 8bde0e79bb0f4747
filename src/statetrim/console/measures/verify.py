"""What a person sees of `verify`."""

from rich.table import Table

from ...artifacts.verification import Verification
from ...artifacts.verification.agreement import Agreement
from .. import terminal

COLUMNS = ("choices equal", "loss, points", "largest gap")


def show_verification(found: Verification, where: str, *, as_json: bool) -> None:
    if as_json:
        terminal.show_json(found.as_json() | {"output": where})
        return
    if found.agreements:
        terminal.show(_table(found))
    for model, notes in found.notes.items():
        for note in notes:
            terminal.say(f"note, {model}: {note}")
    for model, faults in found.faults.items():
        for fault in faults:
            terminal.say(f"fault, {model}: {fault}", "bold red")
    if not found.faults:
        terminal.say("no fault found", "bold green")
    terminal.say(
        "losses against the original, intervals of 95%, paired by sequence; gap: the logits by "
        f"which transformers preferred another token; written to {where}"
    )


def _table(found: Verification) -> Table:
    table = Table(
        title=f"{found.version}, {found.dtype}, compared with transformers", title_justify="left"
    )
    table.add_column("model", overflow="fold")
    table.add_column("tokens")
    for name in COLUMNS:
        table.add_column(name, justify="right")
    for one in found.agreements:
        table.add_row(
            one.model,
            one.kind,
            f"{sum(one.agreed):,} of {sum(one.places):,}",
            _change(found, one),
            f"{one.largest_gap:.2g}",
        )
    return table


def _change(found: Verification, one: Agreement) -> str:
    moved = found.agreement_change(one.model, one.kind) if one.model != found.models[0] else None
    if moved is None:
        return ""
    lost = -moved
    return f"{lost.estimate:+.2f} ({lost.low:+.2f} to {lost.high:+.2f})"
