"""Console output of `analyze --sensitivity`."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from ...artifacts.sensitivity import LayerCut, Sensitivity
from ...errors import StatetrimError
from ...selection.allocate import Allocation, allocate, allocate_in_pages
from ...serving.capacity.parts import Paging
from .. import terminal

SHARES = (0.5, 0.25)


def show_sensitivity(
    sensitivity: Sensitivity,
    paging: Paging,
    output: str,
    figures: Sequence[Path],
    *,
    as_json: bool,
) -> None:
    """Print a row per layer with the cost of each width, the conclusion, and widths by layer."""
    if as_json:
        terminal.print_json(
            {
                "sensitivity": output,
                "figures": [str(path) for path in figures],
                "finding": sensitivity.sentence,
                "cuts": [_cut_json(sensitivity, cut) for cut in sensitivity.cuts],
            }
        )
        return
    title, columns = "Each layer cut alone: NLL, recall lost", ["layer"]
    for axis, keep in sensitivity.variants:
        columns.append(f"{keep} of {sensitivity.widths[axis]} {axis}s")
    table = terminal.new_table(title, *columns, left=0)
    for layer in sensitivity.layers:
        cells = [str(layer)]
        for axis, keep in sensitivity.variants:
            cells.append(_cost_text(sensitivity, sensitivity.find(layer, axis, keep)))
        table.add_row(*cells)
    terminal.print_table(table)
    terminal.print_text(sensitivity.sentence)
    loads = ", ".join(map(str, sensitivity.recalled_pair_counts)) or "none"
    terminal.print_text(f"NLL in nats per token; recall in points, mean over {loads} pairs")
    for share in SHARES:
        _show_allocation(f"{share:.0%} of the bytes", partial(allocate, sensitivity, share))
        _show_allocation(
            f"As much of vLLM's cache, with its plugin, as one shape of {share:.0%}",
            partial(allocate_in_pages, sensitivity, share, paging),
        )
    terminal.print_text(
        f"written to {output}" + (f", and {len(figures)} pictures" if figures else "")
    )


def _show_allocation(budget: str, find: Callable[[], Allocation]) -> None:
    """Print the best widths by layer for a budget; nothing if no widths fit."""
    try:
        allocation = find()
    except StatetrimError:
        return
    terminal.print_text(
        f"{budget}, by layer (docs/widths-by-layer.md): --to {allocation}, which would cost "
        f"{allocation.cost:.3f} (nats and recall), if costs of layers add up"
    )


def _cost_text(sensitivity: Sensitivity, cut: LayerCut) -> str:
    """Increase of NLL in nats per token and, if it was measured, change of recall in points,
    negative if lost."""
    drop = sensitivity.recall_drop(cut)
    recall = "" if drop is None else f", {-100 * drop.estimate:+.1f}"
    return f"{sensitivity.nll_increase(cut).estimate:+.3f}{recall}"


def _cut_json(sensitivity: Sensitivity, cut: LayerCut) -> dict[str, object]:
    nll, drop = sensitivity.nll_increase(cut), sensitivity.recall_drop(cut)
    return {
        "layer": cut.layer,
        "axis": cut.axis,
        "keep": cut.keep,
        "nll_increase": [nll.estimate, nll.low, nll.high],
        "recall_drop": None if drop is None else [drop.estimate, drop.low, drop.high],
        "error": dict(cut.error),
    }
