"""What was trained or fitted after the cut."""

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
    if findings.refit is not None:
        yield from _refit_blocks(findings.refit)
    record = findings.recovery
    if record is None:
        yield Missing("No training followed the cut.", [recover_command(findings)])
        return
    options = as_mapping(record.get("options"))
    yield Table(("", "recovery"), [(str(name), str(value)) for name, value in options.items()])
    curve = [p for p in as_dicts(record.get("curve")) if is_number(p.get("step"))]
    loss_names = [
        n for n in ("loss", "ce", "kl") if curve and all(is_number(p.get(n)) for p in curve)
    ]
    series = [
        Series(
            name,
            evenly_spaced(
                [Point(float(p["step"]), float(p[name])) for p in curve], MAX_CURVE_POINTS
            ),
        )
        for name in loss_names
    ]
    unit = "part of the output" if options.get("layerwise") else "nats per token"
    chart = line_chart(series, "Loss by training step", x="step", y=unit)
    if chart:
        yield Picture(chart, f"Loss while training after the cut: {unit}.")
        yield Table(
            ("", *loss_names),
            [
                (row_name, *(f"{float(point[name]):.4f}" for name in loss_names))
                for row_name, point in (("first", curve[0]), ("last", curve[-1]))
            ],
        )
    yield from _held_out_blocks(as_dicts(record.get("held_out")))


def _held_out_blocks(checks: Sequence[Mapping[str, Any]]) -> Iterator[Block]:
    """What the recall sequences that were not trained on say, by tokens."""
    usable = [p for p in checks if is_number(p.get("tokens"))]
    recall_points = [
        Point(float(p["tokens"]), float(p["recall"])) for p in usable if _has_number(p, "recall")
    ]
    chart = line_chart(
        [Series("recall", recall_points)],
        "Held-out recall by tokens",
        x="tokens",
        y="answers given",
    )
    if recall_points and chart:
        yield Picture(chart, "Part of the answers of held-out recall sequences, while training.")
    errors: dict[str, list[Point]] = {}
    for p in usable:
        if _has_number(p, "recall_error") and is_number(p.get("layer")):
            point = Point(float(p["tokens"]), float(p["recall_error"]))
            errors.setdefault(f"layer {p['layer']}", []).append(point)
    series = [Series(name, points) for name, points in errors.items()]
    chart = line_chart(series, "Error on held-out recall", x="tokens", y="part of the output")
    if series and chart:
        yield Picture(
            chart, "Part of a layer's output missed at the answers of held-out recall sequences."
        )


def _has_number(line: Mapping[str, Any], name: str) -> bool:
    return is_number(line.get(name))


def _refit_blocks(record: Mapping[str, Any]) -> Iterator[Block]:
    layers = {
        str(layer): {str(k): v for k, v in as_mapping(errors).items() if is_number(v)}
        for layer, errors in as_mapping(record.get("layers")).items()
    }
    names = list(dict.fromkeys(name for errors in layers.values() for name in errors))
    yield Text("The output projections were refitted to the original's layer outputs.")
    if names:
        yield Table(
            ("layer", *(name.replace("_", " ") for name in names)),
            [
                (layer, *(f"{errors[n]:.4g}" if n in errors else "" for n in names))
                for layer, errors in layers.items()
            ],
            caption="Errors of the refit by layer",
            folded=True,
        )
