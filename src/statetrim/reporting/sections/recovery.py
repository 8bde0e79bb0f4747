"""Refit and recovery: errors by layer, and losses by training step."""

from collections.abc import Iterator, Mapping, Sequence

from ...artifacts.steps import RefitRecord
from ...maths.formatting import evenly_spaced
from ..charts import MAX_CURVE_POINTS, Point, Series, line_chart
from ..document import Block, Picture, Table, Text
from ..findings import Findings, missing

Line = Mapping[str, float | None]
"""The figures of a training step or of a check, by name."""


def blocks(findings: Findings) -> Iterator[Block]:
    """Errors of the refit, options and losses of the recovery, and held-out recall."""
    if findings.refit is not None:
        yield from _refit_blocks(findings.refit)
    record = findings.recover
    if record is None:
        yield missing(
            findings,
            "No training followed the cut.",
            "statetrim recover {cut} --teacher {model} --text {text} --tokens {tokens} "
            "--length 256 --batch-size 8 -o RECOVERED",
        )
        return
    options = record.options
    chosen = {name: value for name, value in options.items() if value not in (None, False, [])}
    yield Table(("", "recovery"), [(name, str(value)) for name, value in chosen.items()])
    curve = [line for line in record.curve if line.get("step") is not None]
    series, rows = [], []
    for name in ("loss", "ce", "kl"):
        points = _points(curve, "step", name)
        if points and len(points) == len(curve):
            series.append(Series(name, evenly_spaced(points, MAX_CURVE_POINTS)))
            rows.append((name, f"{points[0].y:.4f}", f"{points[-1].y:.4f}"))
    unit = "part of the output" if options.get("layerwise") else "nats per token"
    chart = line_chart(series, "Loss by training step", x="step", y=unit)
    yield Picture(chart, f"Loss while training after the cut: {unit}.")
    if rows:
        yield Table(("", "first", "last"), rows)
    yield from _held_out_blocks(record.held_out)


def _held_out_blocks(checks: Sequence[Line]) -> Iterator[Block]:
    checks_by_layer: dict[str, list[Line]] = {}
    for check in checks:
        if check.get("layer") is not None:
            checks_by_layer.setdefault(f"layer {check['layer']}", []).append(check)
    errors = []
    for name, layer_checks in checks_by_layer.items():
        errors.append(Series(name, _points(layer_checks, "tokens", "recall_error")))
    yield Picture(
        line_chart(errors, "Error on held-out recall", x="tokens", y="part of the output"),
        "Part of a layer's output missed at the answers of held-out recall sequences.",
    )


def _points(lines: Sequence[Line], x: str, y: str) -> list[Point]:
    points = []
    for line in lines:
        across, up = line.get(x), line.get(y)
        if across is not None and up is not None:
            points.append(Point(across, up))
    return points


def _refit_blocks(record: RefitRecord) -> Iterator[Block]:
    """That there was a refit, and a table of its errors by layer, a column for each name."""
    yield Text("The output projections were refitted to the original's layer outputs.")
    names = dict.fromkeys(name for errors in record.layers.values() for name in errors)
    if names:
        header = ["layer", *(name.replace("_", " ") for name in names)]
        rows = []
        for layer, errors in record.layers.items():
            rows.append([layer, *(f"{errors[n]:.4g}" if n in errors else "" for n in names)])
        yield Table(header, rows, caption="Errors of the refit by layer", folded=True)
