"""Pictures of a sweep: what is lost against what a sequence costs, so that a knee shows."""

from ..artifacts.sweep import Point as Tried
from ..artifacts.sweep import Sweep, SweepScore
from ..maths.formatting import percent_text
from ..maths.units import MIB, is_number
from ..tasks import TASKS
from .charts import Point, Series, line_chart
from .drawing import Drawing, Sheet

MAX_PANELS = 3
CAPTION = (
    "How to read it: each point is a cut of the model to so much recurrent state per sequence "
    "(float32), labelled keys x values of a head; bars are 95% intervals of the difference to the "
    "original, which is the dashed line. Where values are cut, output projections are refitted. "
    "Cut until the curve bends."
)


def sheet(sweep: Sweep) -> Sheet:
    """The pictures of the first few tasks side by side."""
    return Sheet(list(pictures(sweep).values())[:MAX_PANELS], CAPTION)


def pictures(sweep: Sweep) -> dict[str, Drawing]:
    """By "task metric": what every task is judged by; an unknown task shows all it has."""
    names = dict.fromkeys(
        name for point in sweep.points for name in point.scores if is_main_metric(name)
    )
    drawings = {name: _picture(sweep, name) for name in names}
    return {name: drawing for name, drawing in drawings.items() if drawing}


def is_main_metric(name: str) -> bool:
    """Whether "task metric" is what the task is judged by."""
    task, _, metric = name.partition(" ")
    return task not in TASKS or metric == TASKS[task].metric


def method_and_axes(sweep: Sweep, cut_point: Tried) -> str:
    """The method and which axes it cut: at equal bytes they are not alike."""
    if cut_point.method == "none":
        return "original"
    original = next((point for point in sweep.points if point.method == "none"), None)
    axes = [
        axis
        for axis, width, full_width in (
            ("keys", cut_point.keep, original and original.keep),
            ("values", cut_point.keep_values, original and original.keep_values),
        )
        if width != full_width
    ]
    return (
        f"{cut_point.method}, {' and '.join(axes)}" if original and axes else str(cut_point.method)
    )


def interval_bounds(measured: SweepScore) -> tuple[float | None, float | None]:
    """The interval, within what a share can be."""
    low, high = measured.low, measured.high
    if not is_number(low) or not is_number(high) or low is None or high is None:
        return None, None
    return (max(0.0, low), min(1.0, high)) if measured.unit == "share" else (low, high)


def _picture(sweep: Sweep, name: str) -> Drawing | None:
    shown = [
        (point, point.scores[name])
        for point in sweep.points
        if name in point.scores
        and is_number(point.state_bytes)
        and is_number(point.scores[name].value)
    ]
    large = any(point.state_bytes >= MIB for point, _ in shown)
    scale, unit = (MIB, "MiB") if large else (1024, "KiB")
    points_by_label: dict[str, list[Point]] = {}
    original_value = None
    for point, measured in shown:
        if point.method == "none":
            original_value = measured.value
        points_by_label.setdefault(method_and_axes(sweep, point), []).append(
            Point(
                point.state_bytes / scale,
                measured.value,
                *interval_bounds(measured),
                label=f"{point.keep}x{point.keep_values}"[:20],
            )
        )
    is_share = all(measured.unit == "share" for _, measured in shown)
    return line_chart(
        [
            Series(label, sorted(points, key=lambda p: p.x), "original" * (label == "original"))
            for label, points in points_by_label.items()
        ],
        f"{name} against the state of one sequence",
        x=f"state of a sequence, {unit}",
        y=name,
        format_y=percent_text if is_share else "{:g}".format,
        marks=True,
        reference=original_value,
    )
