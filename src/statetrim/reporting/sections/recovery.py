"""Refit and recovery: errors by layer, and losses by training step."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...maths.formatting import evenly_spaced
from ...maths.units import is_number
from ..charts import Point, Series, line_chart
from ..commands import recover_command
from ..document import Block, Missing, Picture, Table, Text
from ..findings import Findings
from ..records import as_dicts, as_mapping

TITLE = "Recovery"
MAX_CURVE_POINTS = 300


def blocks(findings: Findings) -> Iterator[Block]:
    """Errors of the refit, options and losses of the recovery, and held-out recall."""
    if findings.refit is not None:
        yield from _refit_blocks(findings.refit)
    record = findings.recovery
    if record is None:
        yield Missing("No training followed the cut.", [recover_command(findings)])
        return
    options = as_mapping(record.get("options"))
    yield Table(("", "recovery"), [(str(name), str(value)) for name, value in options.items()])
    curve = [line for line in as_dicts(record.get("curve")) if _has_number(line, "step")]
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
    yield from _held_out_blocks(as_dicts(record.get("held_out")))


def _held_out_blocks(checks: Sequence[Mapping[str, Any]]) -> Iterator[Block]:
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
    checks_by_layer: dict[str, list[Mapping[str, Any]]] = {}
    for check in checks:
        if _has_number(check, "layer"):
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


def _points(lines: Sequence[Mapping[str, Any]], x: str, y: str) -> list[Point]:
    """A point for each line of an untrusted record that holds both numbers."""
    points = []
    for line in lines:
        if _has_number(line, x) and _has_number(line, y):
            points.append(Point(float(line[x]), float(line[y])))
    return points


def _has_number(line: Mapping[str, Any], name: str) -> bool:
    return is_number(line.get(name))


def _refit_blocks(record: Mapping[str, Any]) -> Iterator[Block]:
    """A sentence that there was a refit, then a table of its errors by layer, a column for each
    name in the record.

    Entries that are no numbers are left out, and without any there is no table.
    """
    layers = as_mapping(record.get("layers"))
    names: dict[str, None] = {}  # an ordered set
    for errors in layers.values():
        for name, error in as_mapping(errors).items():
            if is_number(error):
                names[name] = None
    yield Text("The output projections were refitted to the original's layer outputs.")
    if names:
        header = ["layer", *(name.replace("_", " ") for name in names)]
        rows = []
        for layer, errors in layers.items():
            cells = [layer]
            for name in names:
                error = as_mapping(errors).get(name)
                cells.append(f"{error:.4g}" if is_number(error) else "")
            rows.append(cells)
        yield Table(header, rows, caption="Errors of the refit by layer", folded=True)
