"""What a person sees of a sweep."""

from dataclasses import asdict

from rich.table import Table

from ..artifacts.sweep import Measured, Sweep
from ..maths.formatting import size
from . import terminal


def show_sweep(sweep: Sweep, where: str, *, as_json: bool) -> None:
    if as_json:
        terminal.show_json({"output": where, **asdict(sweep)})
        return
    table = Table(title=f"{sweep.model}: quality against state", title_justify="left")
    metrics = [name for name in sweep.points[0].scores if _shown(name)]
    for name in ("keys x values", "state", *metrics):
        table.add_column(name, justify="right")
    for point in sweep.points:
        cells = [_measured(point.scores[name]) for name in metrics]
        shape = f"{point.keep} x {point.keep_values}"
        table.add_row(shape, size(point.state_bytes), *cells)
    terminal.show(table)
    terminal.say(
        f"intervals of 95%, paired with the original; plans, scores and the picture are in {where}",
    )


def _shown(metric: str) -> bool:
    """Leave out the many loads of one recall task; the file has them."""
    return not metric.split()[-1].startswith("pairs_")


def _measured(found: Measured) -> str:
    scale, unit = (100, "%") if found.unit == "share" else (1, "")
    text = f"{scale * found.value:.3g}{unit}"
    if found.low is None or found.high is None:
        return text
    return f"{text} ±{scale * (found.high - found.low) / 2:.2g}"
