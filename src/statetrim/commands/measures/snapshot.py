"""statetrim snapshot"""

from ...snapshots.options import SnapshotOptions
from .. import arguments, terminal
from ..arguments import FamilyFile, Json, Model
from ..command import command


@command(SnapshotOptions)
def snapshot(
    model: Model, options: SnapshotOptions, family: FamilyFile = None, as_json: Json = False
) -> None:
    arguments.check_output_free(options.out)
    from ...snapshots.snapshot import snapshot as run
    from ..progress import run_with_progress

    opened = arguments.open_model(model, family)
    measured = run_with_progress(run, opened, options)
    if as_json:
        terminal.print_json(measured.as_json())
        return
    terminal.print_table(*measured.table())
    ranks = [f"{layer}: {sum(r) / len(r):.1f}" for layer, r in measured.ranks.items()]
    terminal.print_text(f"mean rank by layer within {measured.tolerance:g}: {', '.join(ranks)}")
    shares = [f"{tokens}: {100 * share:.1f} %" for tokens, share in measured.lengths.items()]
    terminal.print_text(f"share of the float32 bytes after tokens: {', '.join(shares)}")
    if options.out is not None:
        terminal.print_text(f"written to {options.out}")
