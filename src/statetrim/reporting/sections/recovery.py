"""Refit and recovery: errors by layer, and losses by training step."""

from collections.abc import Iterator, Mapping, Sequence

from ...artifacts.steps import RefitRecord
from ...maths.formatting import evenly_spaced
from ..charts import Point, Series, line_chart
from ..commands import recover_command
from ..document import Block, Missing, Picture, Table, Text
from ..findings import Findings

TITLE = "Recovery"
MAX_CURVE_POINTS = 300

Line = Mapping[str, float | None]
"""The figures of a training step or of a check, by name."""


def blocks(findings: Findings) -> Iterator[Block]:
    """Errors of the refit, options and losses of the recovery, and held-out recall."""
    if findings.refit is not None:
        yield from _refit_blocks(findings.refit)
    record = findings.recovery
    if record is None:
        yield Missing("No training followed the cut.", [recover_command(findings)])
        return
    options = record.options
    yield Table(("", "recovery"), [(name, str(value)) for name, value in options.items()])
    curve = [line for line in record.curve if line.get("step") is not None]
    series = []
    for name in ("loss", "ce", "kl"):
        points = _points(curve, "step", name)
        if points and len(points) == len(curve):
            series.append(Series(name, evenly_spaced(points, MAX_CURVE_POINTS)))
    unit = "part of the output" if options.get("layerwise") else "nats per token"
    chart = line_chart(series, "Loss by training step", x="step", y=unit)
    if chart:
        yield Picture(chart, f"Loss while training after the cut: {unit}.")
        header, first, last = [""], ["first"], ["last"]
        for line in series:
            header.append(line.name)
            first.append(f"{line.points[0].y:.4f}")
            last.append(f"{line.points[-1].y:.4f}")
        yield Table(header, [first, last])
    yield from _held_out_blocks(record.held_out)


def _held_out_blocks(checks: Sequence[Line]) -> Iterator[Block]:
    """Recall, and errors of layers, on held-out recall sequences by training tokens."""
    recall_points = _points(checks, "tokens", "recall")
    chart = line_chart(
        [Series("recall", recall_points)],
        "Held-out recall by tokens",
        x="tokens",
        y="answers given",
    )
    if recall_points and chart:
        yield Picture(chart, "Part of the answers of held-out recall sequences, while training.")
    checks_by_layer: dict[str, list[Line]] = {}
    for check in checks:
        if check.get("layer") is not None:
            checks_by_layer.setdefault(f"layer {check['layer']}", []).append(check)
    series = []
    for name, layer_checks in checks_by_layer.items():
        if points := _points(layer_checks, "tokens", "recall_error"):
            series.append(Series(name, points))
    chart = line_chart(series, "Error on held-out recall", x="tokens", y="part of the output")
    if series and chart:
        yield Picture(
            chart, "Part of a layer's output missed at the answers of held-out recall sequences."
        )


def _points(lines: Sequence[Line], x: str, y: str) -> list[Point]:
    """A point for each line that has both numbers."""
    points = []
    for line in lines:
        across, up = line.get(x), line.get(y)
        if across is not None and up is not None:
            points.append(Point(across, up))
    return points


def _refit_blocks(record: RefitRecord) -> Iterator[Block]:
    """A sentence that there was a refit, then a table of its errors by layer, a column for each
    name in the record; without any there is no table."""
    yield Text("The output projections were refitted to the original's layer outputs.")
    names: dict[str, None] = {}  # an ordered set
    for errors in record.layers.values():
        names.update(dict.fromkeys(errors))
    if names:
        header = ["layer", *(name.replace("_", " ") for name in names)]
        rows = []
        for layer, errors in record.layers.items():
            rows.append([layer, *(f"{errors[n]:.4g}" if n in errors else "" for n in names)])
        yield Table(header, rows, caption="Errors of the refit by layer", folded=True)
