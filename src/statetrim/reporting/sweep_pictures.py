"""Pictures of a sweep: what is lost against what a sequence costs, so that a knee shows."""

from ..artifacts.sweep import Point as Tried
from ..artifacts.sweep import Sweep, SweepScore
from ..maths.formatting import percent_text
from ..maths.units import MIB, is_number
from ..tasks import TASKS
from .charts import Point, Series, line_chart
from .drawing import Drawing, Sheet

MOST_PANELS = 3
CAPTION = (
    "How to read it: each point is a cut of the model to so much recurrent state per sequence "
    "(float32), labelled keys x values of a head; bars are 95% intervals of the difference to the "
    "original, which is the dashed line. Where values are cut, output projections are refitted. "
    "Cut until the curve bends."
)


def sheet(sweep: Sweep) -> Sheet:
    """The pictures of the first few tasks side by side."""
    return Sheet(list(pictures(sweep).values())[:MOST_PANELS], CAPTION)


def pictures(sweep: Sweep) -> dict[str, Drawing]:
    """By "task metric": what every task is judged by; an unknown task shows all it has."""
    names = dict.fromkeys(name for tried in sweep.points for name in tried.scores if is_main(name))
    found = {name: _picture(sweep, name) for name in names}
    return {name: drawing for name, drawing in found.items() if drawing}


def is_main(name: str) -> bool:
    """Whether "task metric" is what the task is judged by."""
    task, _, metric = name.partition(" ")
    return task not in TASKS or metric == TASKS[task].metric


def axes_cut(sweep: Sweep, tried: Tried) -> str:
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


def bounds(measured: SweepScore) -> tuple[float | None, float | None]:
    """The interval, within what a share can be."""
    low, high = measured.low, measured.high
    if not is_number(low) or not is_number(high) or low is None or high is None:
        return None, None
    return (max(0.0, low), min(1.0, high)) if measured.unit == "share" else (low, high)


def _picture(sweep: Sweep, name: str) -> Drawing | None:
    shown = [
        (tried, tried.scores[name])
        for tried in sweep.points
        if name in tried.scores
        and is_number(tried.state_bytes)
        and is_number(tried.scores[name].value)
    ]
    large = any(tried.state_bytes >= MIB for tried, _ in shown)
    scale, unit = (MIB, "MiB") if large else (1024, "KiB")
    lines: dict[str, list[Point]] = {}
    original = None
    for tried, measured in shown:
        if tried.method == "none":
            original = measured.value
        lines.setdefault(axes_cut(sweep, tried), []).append(
            Point(
                tried.state_bytes / scale,
                measured.value,
                *bounds(measured),
                label=f"{tried.keep}x{tried.keep_values}"[:20],
            )
        )
    share = all(measured.unit == "share" for _, measured in shown)
    return line_chart(
        [
            Series(label, sorted(points, key=lambda p: p.x), "original" * (label == "original"))
            for label, points in lines.items()
        ],
        f"{name} against the state of one sequence",
        x=f"state of a sequence, {unit}",
        y=name,
        show_y=percent_text if share else "{:g}".format,
        marks=True,
        reference=original,
    )
