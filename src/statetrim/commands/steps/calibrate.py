"""statetrim calibrate"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...calibration.options import CalibrateOptions
from .. import arguments, terminal
from ..arguments import FamilyFile, Json, Model
from ..command import command

if TYPE_CHECKING:
    from ...artifacts.statistics import Statistics
    from ...storage.checkpoint import Checkpoint

NORM_EPS = 1e-6
"""Epsilon of the output norm in every supported model type."""


@command(CalibrateOptions)
def calibrate(
    model: Model, options: CalibrateOptions, family: FamilyFile = None, as_json: Json = False
) -> None:
    from ...calibration.calibrate import calibrate as run
    from ...progress import is_rank_zero
    from ..progress import run_with_progress

    opened = arguments.open_model(model, family)
    original = options.original
    if original is not None:
        original = arguments.open_model(str(original), family)
    statistics = run_with_progress(run, opened, options, original=original)
    if is_rank_zero():
        show_statistics(statistics, opened, str(options.out), as_json=as_json)


def show_statistics(
    statistics: Statistics, model: Checkpoint, output: str, *, as_json: bool
) -> None:
    """Print the tokens and sums, and a note if outputs are small compared with the norm's eps."""
    tokens = next(iter(statistics.layers.values())).tokens
    mean_squares = []
    for layer in statistics.layers.values():
        if "output_square" in layer.sums:
            mean_squares.append(float(layer["output_square"].mean()) / tokens)
    generated_tokens = {}
    for source, layers in statistics.generated.items():
        generated_tokens[source] = next(iter(layers.values())).tokens
    if as_json:
        terminal.print_json(
            {
                "statistics": output,
                "tokens": tokens,
                "generated": generated_tokens,
                "parts": sorted(statistics.sum_names),
                "output_energy": mean_squares,
            }
        )
        return
    rows = [
        ("tokens", f"{tokens:,}"),
        *((f"tokens of {name}", f"{count:,}") for name, count in generated_tokens.items()),
        ("layers x key heads", f"{len(statistics.layers)} x {model.geometry.num_k_heads}"),
        ("sums", ", ".join(sorted(statistics.sum_names))),
        ("written to", output),
    ]
    terminal.print_table("Statistics", (), rows)
    if mean_squares and min(mean_squares) < NORM_EPS:
        small_layers = sum(mean_square < NORM_EPS for mean_square in mean_squares)
        terminal.note(
            f"in {small_layers} of {len(mean_squares)} layers the output before its norm is small "
            f"(mean square {min(mean_squares):.2g}, below the norm's eps of about {NORM_EPS:g}): "
            "there the norm does not undo the rescaling of a cut, which may cost more; compare "
            "with a random cut"
        )
