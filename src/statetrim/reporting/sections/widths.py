"""Quality against the size of the state, where several widths were tried."""

from collections.abc import Iterator

from ...artifacts.sweep import Measured, Sweep
from ...artifacts.sweep import Point as Tried
from ...maths.formatting import size
from ...maths.units import is_number
from ...tasks import TASKS
from ..charts import Point, Series, line_chart
from ..document import Block, Picture, Table
from ..findings import Findings
from .wording import missing


def widths(found: Findings) -> Iterator[Block]:
    """A picture for the main metric of each task, and all of it in a table."""
    if found.sweep is None:
        yield from missing(
            "Only one width was looked at. A sweep calibrates once and shows what widths cost.",
            "statetrim trim MODEL --sweep 96,64,48,32 --text text.jsonl -o SWEEP",
        )
        return
    lines: dict[str, dict[str, list[Point]]] = {}
    rows = []
    for tried in found.sweep.points:
        if not is_number(tried.state_bytes):
            continue
        label = _label(found.sweep, tried)
        for name, measured in tried.scores.items():
            if not is_number(measured.value):
                continue
            low, high = _bounds(measured)
            if _main(name):
                line = lines.setdefault(f"{name}, {measured.unit}", {}).setdefault(label, [])
                line.append(Point(tried.state_bytes / 2**20, measured.value, low, high))
            rows.append(
                (
                    f"{tried.keep} x {tried.keep_values}",
                    label,
                    size(int(tried.state_bytes)),
                    name,
                    f"{measured.value:.4g}",
                    "" if low is None or high is None else f"{low:.4g} to {high:.4g}",
                )
            )
    for name, by_label in lines.items():
        series = [Series(label, sorted(p, key=lambda p: p.x)) for label, p in by_label.items()]
        chart = line_chart(
            series,
            f"{name} against the state of one sequence",
            x="state of a sequence, MiB",
            y=name,
            marks=True,
        )
        yield Picture(chart, f"{name} by the size of the state; bars are 95% intervals.")
    yield Table(
        ("keys x values", "cut", "state", "metric", "value", "95% interval"),
        rows,
        caption="All widths and metrics in numbers",
        folded=True,
    )


def _label(sweep: Sweep, tried: Tried) -> str:
    """The method and which axes it cut: at equal bytes they are not alike."""
    if tried.method == "none":
        return "original"
    whole = next((point for point in sweep.points if point.method == "none"), None)
    axes = [
        axis
        for axis, now, before in (
            ("keys", tried.keep, whole and whole.keep),
            ("values", tried.keep_values, whole and whole.keep_values),
        )
        if now != before
    ]
    return f"{tried.method}, {' and '.join(axes)}" if whole and axes else str(tried.method)


def _main(name: str) -> bool:
    """Whether "task metric" is what the task is judged by; a stranger's task shows all it has."""
    task, _, metric = name.partition(" ")
    return task not in TASKS or metric == TASKS[task].metric


def _bounds(measured: Measured) -> tuple[float | None, float | None]:
    low, high = measured.low, measured.high
    if not is_number(low) or not is_number(high) or low is None or high is None:
        return None, None
    return (max(0.0, low), min(1.0, high)) if measured.unit == "share" else (low, high)
