"""Quality against the size of the state, where several shapes were tried."""

from collections.abc import Iterator

from ...maths.formatting import size
from ...maths.units import is_number
from ..document import Block, Picture, Table, Text
from ..findings import Findings
from ..sweep_pictures import CAPTION, axes_cut, bounds, pictures
from .records import missing

TITLE = "Quality against state size"


def blocks(found: Findings) -> Iterator[Block]:
    """A picture for the main metric of each task, and all of it in a table."""
    sweep = found.sweep
    if sweep is None:
        yield from missing(
            "Only one width was looked at. A sweep calibrates once and shows what widths cost.",
            "statetrim trim MODEL --sweep 96,64,48,32 --text text.jsonl -o SWEEP",
        )
        return
    drawn = pictures(sweep)
    for name, drawing in drawn.items():
        yield Picture(drawing, f"{name} by the size of the state.")
    if drawn:
        yield Text(CAPTION)
    rows = []
    for tried in sweep.points:
        if not is_number(tried.state_bytes):
            continue
        for name, measured in tried.scores.items():
            if not is_number(measured.value):
                continue
            low, high = bounds(measured)
            rows.append(
                (
                    f"{tried.keep} x {tried.keep_values}",
                    axes_cut(sweep, tried),
                    size(int(tried.state_bytes)),
                    name,
                    f"{measured.value:.4g}",
                    "" if low is None or high is None else f"{low:.4g} to {high:.4g}",
                )
            )
    yield Table(
        ("keys x values", "cut", "state", "metric", "value", "95% interval"),
        rows,
        caption="All widths and metrics in numbers",
        folded=True,
    )
