"""Console output of `refit`."""

from rich.table import Table

from ...storage.checkpoint import Checkpoint
from ...storage.json_file import read_json
from ...storage.output import ARTIFACTS, MAX_RECORD_BYTES
from .. import terminal


def show_refit(model: Checkpoint, output: str, *, as_json: bool) -> None:
    """Print the relative residual sum of squares of every layer's output before and after, from the
    refit.json of the checkpoint."""
    layers = read_json(model.path / ARTIFACTS / "refit.json", MAX_RECORD_BYTES)["layers"]
    if as_json:
        terminal.print_json({"output": output, "layers": layers})
        return
    table = Table(title="Refitted: relative error of each layer's output", title_justify="left")
    for name in ("layer", "before", "after", "change"):
        table.add_column(name, justify="right")
    for layer, error in layers.items():
        before, after = error["before"], error["after"]
        table.add_row(layer, f"{before:.2%}", f"{after:.2%}", f"{after / before - 1:+.0%}")
    terminal.print_table(table)
    terminal.print_text(f"sums of squares, on the text of the fit; written to {output}")
