"""What a person sees of `analyze --sensitivity`."""

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from ...artifacts.sensitivity import LayerCut, Sensitivity
from ...errors import StatetrimError
from ...selection.allocate import allocate
from .. import terminal

SHARES = (0.5, 0.25)


def show_sensitivity(
    found: Sensitivity, where: str, figures: Sequence[Path], *, as_json: bool
) -> None:
    """One row a layer, for each width what it costs; and the sentence."""
    if as_json:
        terminal.show_json(
            {
                "sensitivity": where,
                "figures": [str(path) for path in figures],
                "finding": found.sentence,
                "cuts": [_numbers(found, cut) for cut in found.cuts],
            }
        )
        return
    table = Table(title="Each layer cut alone: NLL, recall lost", title_justify="left")
    table.add_column("layer", justify="right")
    for axis, keep in found.variants:
        table.add_column(f"{keep} of {found.widths[axis]} {axis}s", justify="right")
    for layer in found.layers:
        cuts = [found.find(layer, *variant) for variant in found.variants]
        table.add_row(str(layer), *(_cell(found, cut) for cut in cuts))
    terminal.show(table)
    terminal.say(found.sentence)
    loads = ", ".join(map(str, found.recalled_pair_counts)) or "none"
    terminal.say(f"NLL in nats per token; recall in points, mean over {loads} pairs")
    for share in SHARES:
        _say_widths(found, share)
    terminal.say(f"written to {where}" + (f", and {len(figures)} pictures" if figures else ""))


def _say_widths(found: Sensitivity, share: float) -> None:
    """Shapes by layer, for those who can serve them; nothing where none fit."""
    try:
        best = allocate(found, share)
    except StatetrimError:
        return
    terminal.say(
        f"{best.share:.0%} of the bytes by layer (docs/widths-by-layer.md): --widths {best}, which "
        f"would cost {best.cost:.3f} (nats and recall), if costs of layers add up"
    )


def _cell(found: Sensitivity, cut: LayerCut) -> str:
    drop = found.recall_drop(cut)
    recall = "" if drop is None else f", {-100 * drop.estimate:+.1f}"
    return f"{found.nll_increase(cut).estimate:+.3f}{recall}"


def _numbers(found: Sensitivity, cut: LayerCut) -> dict[str, object]:
    nll, drop = found.nll_increase(cut), found.recall_drop(cut)
    return {
        "layer": cut.layer,
        "axis": cut.axis,
        "keep": cut.keep,
        "nll_increase": [nll.estimate, nll.low, nll.high],
        "recall_drop": None if drop is None else [drop.estimate, drop.low, drop.high],
        "error": dict(cut.error),
    }
