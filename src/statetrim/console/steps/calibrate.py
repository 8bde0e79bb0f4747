"""What a person sees of `calibrate`."""

from rich.table import Table

from ...artifacts.statistics import Statistics
from ...storage.checkpoint import Checkpoint
from .. import terminal

NORM_EPS = 1e-6
"""Of the output norm in every model type known here."""


def show_statistics(
    statistics: Statistics, model: Checkpoint, where: str, *, as_json: bool
) -> None:
    layers = statistics.layers.values()
    tokens = next(iter(layers)).tokens
    energy = [float(x.output_square.mean()) / tokens for x in layers if x.output_square is not None]
    made = {name: next(iter(x.values())).tokens for name, x in statistics.generated.items()}
    if as_json:
        terminal.show_json(
            {
                "statistics": where,
                "tokens": tokens,
                "generated": made,
                "parts": sorted(statistics.sum_names),
                "output_energy": energy,
            }
        )
        return
    table = Table(title="Statistics", title_justify="left", show_header=False)
    table.add_row("tokens", f"{tokens:,}")
    for name, count in made.items():
        table.add_row(f"tokens of {name}", f"{count:,}")
    table.add_row("layers x key heads", f"{len(statistics.layers)} x {model.geometry.num_k_heads}")
    table.add_row("sums", ", ".join(sorted(statistics.sum_names)))
    table.add_row("written to", where)
    terminal.show(table)
    if energy and min(energy) < NORM_EPS:
        low = sum(one < NORM_EPS for one in energy)
        terminal.note(
            f"in {low} of {len(energy)} layers the output before its norm is small (mean square "
            f"{min(energy):.2g}, below the norm's eps of about {NORM_EPS:g}): there the norm does "
            "not undo the rescaling of a cut, which may cost more; compare with a random cut"
        )
