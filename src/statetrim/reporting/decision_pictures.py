"""Pictures of a comparison of shapes: scores against the bytes of state that a sequence takes."""

from ..artifacts.decision import Decision, MeasuredShape, ShapeScore
from ..maths.formatting import percent_text
from ..maths.units import MIB
from ..tasks import TASKS
from .charts import Point, Series, line_chart
from .drawing import Drawing

CAPTION = (
    "How to read it: each point is a cut of the model to so much recurrent state per sequence "
    "(float32), labelled keys x values of a head; bars are 95% intervals of the difference to the "
    "original, which is the dashed line. Where values are cut, output projections are refitted. "
    "Cut until the curve bends."
)


def pictures(decision: Decision) -> dict[str, Drawing]:
    """Drawings by "task metric", one per main metric; an unknown task shows all its metrics."""
    names: dict[str, None] = {}  # an ordered set
    for point in decision.points:
        names.update(dict.fromkeys(point.scores))
    drawings = {}
    for name in names:
        drawing = _picture(decision, name) if is_main_metric(name) else None
        if drawing:
            drawings[name] = drawing
    return drawings


def is_main_metric(name: str) -> bool:
    """Whether "task metric" names the metric that the verdict uses for the task; True for every
    metric of an unknown task."""
    task, _, metric = name.partition(" ")
    return task not in TASKS or metric == TASKS[task].metric


def method_and_axes(decision: Decision, cut: MeasuredShape) -> str:
    """Method and pruned axes, as "drrqr, keys": axes are not equivalent at equal bytes.

    "original" for the original; only the method if there is no original to compare with.
    """
    if cut.method == "none":
        return "original"
    original = next((point for point in decision.points if point.method == "none"), None)
    axes = []
    if original and cut.keep != original.keep:
        axes.append("keys")
    if original and cut.keep_values != original.keep_values:
        axes.append("values")
    return f"{cut.method}, {' and '.join(axes)}" if axes else str(cut.method)


def interval_bounds(measured: ShapeScore) -> tuple[float | None, float | None]:
    """The interval, or (None, None) without one; that of a share is clamped to 0..1."""
    low, high = measured.low, measured.high
    if low is None or high is None:
        return None, None
    return (max(0.0, low), min(1.0, high)) if measured.unit == "share" else (low, high)


def _picture(decision: Decision, name: str) -> Drawing | None:
    """The metric `name` by state bytes, a line per method and pruned axes; None without points."""
    shown: list[tuple[MeasuredShape, ShapeScore]] = []
    for cut in decision.points:
        score = cut.scores.get(name)
        if score is not None:
            shown.append((cut, score))
    is_large = any(cut.state_bytes >= MIB for cut, _ in shown)
    scale, unit = (MIB, "MiB") if is_large else (1024, "KiB")
    is_share = all(score.unit == "share" for _, score in shown)
    points_by_label: dict[str, list[Point]] = {}
    original_value = None
    for cut, score in shown:
        if cut.method == "none":
            original_value = score.value
        shape = str(cut)[:20]
        point = Point(cut.state_bytes / scale, score.value, *interval_bounds(score), label=shape)
        points_by_label.setdefault(method_and_axes(decision, cut), []).append(point)
    series = []
    for label, points in points_by_label.items():
        style = "original" if label == "original" else ""
        series.append(Series(label, sorted(points, key=lambda point: point.x), style))
    return line_chart(
        series,
        f"{name} against the state of one sequence",
        x=f"state of a sequence, {unit}",
        y=name,
        format_y=percent_text if is_share else "{:g}".format,
        marks=True,
        reference=original_value,
    )
