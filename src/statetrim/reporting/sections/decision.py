"""Why the state has this shape, where several were compared: sizes, losses and plans."""

from collections.abc import Iterator

from ...artifacts.decision import Decision, MeasuredShape
from ...cut.shape import CHANNEL_AXES
from ...judging.decision_table import CAPTION as TABLE_CAPTION
from ...judging.decision_table import HEADER, decision_rows, needs_text
from ...judging.losses import MetricValue
from ...judging.recommendation import Measured, measured_values, recommend
from ...maths.formatting import bytes_text, percent_text
from ...maths.units import MIB
from ...serving.capacity.compare import (
    capacity_text,
    known_capacities,
)
from ...serving.shapes import common_shapes
from ...tasks import TASKS, setting_text
from ...tasks.unit import SHARE
from ..charts import ORIGINAL, Chart, Point, Series, line_chart, number_text
from ..document import Block, Command, Missing, Picture, Table, Text, as_sentence
from ..findings import Findings, command_arguments, shell_quoted, trim_command

_SUGGESTED_SHAPES = 3
CAPTION = (
    "How to read it: each point is a cut of the model to so much recurrent state per sequence "
    "(float32), labelled keys x values of a head; bars are 95% intervals of the difference to the "
    "original, which is the dashed line. Where values are cut, output projections are refitted."
)
_CURVE_SIZES = 3  # of cuts; with fewer there is no bend to look for


def blocks(findings: Findings) -> Iterator[Block]:
    """The reason, a table of all shapes, a picture per main metric, and all scores."""
    decision, original = findings.decision, findings.original
    if decision is None:
        shapes = "96x96,64x64,48x48"
        if original is not None:
            shapes = ",".join(map(str, common_shapes(original.geometry)[:_SUGGESTED_SHAPES]))
        yield Missing(
            "Only one shape was measured. Several are calibrated once, and compared.",
            [trim_command(findings, shapes, "SMALLER")],
        )
        return
    advice = recommend(decision.points, findings.compared_scores)
    measured = measured_values(decision, findings.compared_scores)
    yield Text(as_sentence(decision.sentence or advice.reason))
    if decision.expected:
        yield Text(as_sentence(decision.expected))
    if advice.cuts:
        yield Table(HEADER, decision_rows(decision, findings.compared_scores), _caption(findings))
        if needs := needs_text(decision):
            yield Text(as_sentence(needs))
        chosen = next((x.kept for x in decision.points if str(x) == decision.chosen), "")
        other = next((kept for kept in findings.compared_plans if kept != chosen), None)
        if other is not None:
            lines = [trim_command(findings, other, "OTHER")]
            for plan in findings.compared_plans.values():
                model = command_arguments(findings).model
                lines.append(f"statetrim prune {model} {shell_quoted(plan)} -o SMALL")
            yield Text("To take another shape, measured with a random cut, or only cut:")
            yield Command(lines)
    drawings = _pictures(decision, measured)
    for name, drawing in drawings.items():
        yield Picture(drawing, f"{name} by the size of the state.")
    if drawings:
        sizes = {cut.point.state_bytes for cut in advice.cuts}
        has_curve = len(sizes) >= _CURVE_SIZES
        yield Text(f"{CAPTION} Cut until the curve bends." if has_curve else CAPTION)
        yield Table(
            ("keys x values", "cut", "state", "metric", "value", "95% interval"),
            list(_score_rows(decision, measured)),
            caption="All shapes and metrics in numbers, states in float32 unless a row says "
            "otherwise; the accuracy of a task with settings is "
            "the mean of those on which the original is above chance, the same for every shape",
            folded=True,
        )


def _caption(findings: Findings) -> str:
    serving, caption = findings.counted_in, TABLE_CAPTION
    if without_cut := known_capacities(findings.original, None, serving):
        caption += f". Without a cut, {capacity_text(without_cut, serving, with_cut=False)}"
    return caption


def _score_rows(decision: Decision, measured: Measured) -> Iterator[tuple[str, ...]]:
    for point, values in measured:
        for x in values:
            as_text = percent_text if x.unit is SHARE else number_text
            bounds = [as_text(end) for end in (x.low, x.high) if end is not None]
            yield (
                str(point),
                _method_and_axes(decision, point),
                bytes_text(point.state_bytes),
                f"{x.task}, {setting_text(x.task, x.metric)}",
                as_text(x.value),
                " to ".join(bounds),
            )


def _pictures(decision: Decision, measured: Measured) -> dict[str, Chart]:
    """Charts by "task metric", one per metric that the verdict uses for a task; an unknown task
    shows all its metrics."""
    names = dict.fromkeys((x.task, x.metric) for _, values in measured for x in values)
    charts = {}
    for task, metric in names:
        is_main = task not in TASKS or metric == TASKS[task].metric
        if is_main and (chart := _picture(decision, measured, task, metric)):
            charts[f"{task} {metric}"] = chart
    return charts


def _method_and_axes(decision: Decision, cut: MeasuredShape) -> str:
    """Method and pruned axes, as "drrqr, keys": axes are not equivalent at equal bytes.

    "original" for the original; only the method if there is no original to compare with.
    """
    if cut.method == "none":
        return f"original, {cut.state_dtype}" if cut.is_rounded else "original"
    original = next((point for point in decision.points if point.method == "none"), None)
    widths = zip(CHANNEL_AXES, cut.shape, original.shape if original else cut.shape, strict=True)
    axes = [f"{axis}s" for axis, kept, whole in widths if kept != whole]
    return f"{cut.method}, {' and '.join(axes)}" if axes else str(cut.method)


def _picture(decision: Decision, measured: Measured, task: str, metric: str) -> Chart | None:
    shown, name = list[tuple[MeasuredShape, MetricValue]](), f"{task} {metric}"
    for cut, values in measured:
        shown += [(cut, x) for x in values if (x.task, x.metric) == (task, metric)]
    is_large = any(cut.state_bytes >= MIB for cut, _ in shown)
    scale, unit = (MIB, "MiB") if is_large else (1024, "KiB")
    is_share = all(x.unit is SHARE for _, x in shown)
    points_by_label: dict[str, list[Point]] = {}
    original_value = None
    for cut, x in shown:
        if cut.method == "none" and not cut.is_rounded:
            original_value = x.value
        shape = str(cut)[:20]
        point = Point(cut.state_bytes / scale, x.value, x.low, x.high, label=shape)
        points_by_label.setdefault(_method_and_axes(decision, cut), []).append(point)
    series = []
    for label, points in points_by_label.items():
        style = ORIGINAL if label == "original" else ""
        series.append(Series(label, sorted(points, key=lambda point: point.x), style))
    return line_chart(
        series,
        f"{name} against the state of one sequence",
        x=f"state of a sequence, {unit}",
        y=name,
        format_y=percent_text if is_share else number_text,
        marks=True,
        reference=original_value,
    )
