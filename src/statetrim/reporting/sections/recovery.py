"""What was trained or fitted after the cut."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...maths.formatting import evenly_spaced
from ...maths.units import is_number
from ..charts import Point, Series, line_chart
from ..document import Block, Missing, Picture, Table, Text
from ..findings import Findings
from ..names import recover_command
from ..records import dicts, mapping

TITLE = "Recovery"
MOST_CURVE_POINTS = 300


def blocks(found: Findings) -> Iterator[Block]:
    if found.refit is not None:
        yield from _refitted(found.refit)
    record = found.recovery
    if record is None:
        yield Missing("No training followed the cut.", [recover_command(found)])
        return
    options = mapping(record.get("options"))
    yield Table(("", "recovery"), [(str(name), str(value)) for name, value in options.items()])
    curve = [p for p in dicts(record.get("curve")) if is_number(p.get("step"))]
    figures = [n for n in ("loss", "ce", "kl") if curve and all(is_number(p.get(n)) for p in curve)]
    series = [
        Series(
            name,
            evenly_spaced(
                [Point(float(p["step"]), float(p[name])) for p in curve], MOST_CURVE_POINTS
            ),
        )
        for name in figures
    ]
    unit = "part of the output" if options.get("layerwise") else "nats per token"
    chart = line_chart(series, "Loss by training step", x="step", y=unit)
    if chart:
        yield Picture(chart, f"Loss while training after the cut: {unit}.")
        yield Table(
            ("", *figures),
            [
                (when, *(f"{float(point[name]):.4f}" for name in figures))
                for when, point in (("first", curve[0]), ("last", curve[-1]))
            ],
        )
    yield from _held_out(dicts(record.get("held_out")))


def _held_out(checks: Sequence[Mapping[str, Any]]) -> Iterator[Block]:
    """What the recall sequences that were not trained on say, by tokens."""
    known = [p for p in checks if is_number(p.get("tokens"))]
    whole = [Point(float(p["tokens"]), float(p["recall"])) for p in known if _has(p, "recall")]
    chart = line_chart(
        [Series("recall", whole)], "Held-out recall by tokens", x="tokens", y="answers given"
    )
    if whole and chart:
        yield Picture(chart, "Part of the answers of held-out recall sequences, while training.")
    errors: dict[str, list[Point]] = {}
    for p in known:
        if _has(p, "recall_error") and is_number(p.get("layer")):
            point = Point(float(p["tokens"]), float(p["recall_error"]))
            errors.setdefault(f"layer {p['layer']}", []).append(point)
    series = [Series(name, points) for name, points in errors.items()]
    chart = line_chart(series, "Error on held-out recall", x="tokens", y="part of the output")
    if series and chart:
        yield Picture(
            chart, "Part of a layer's output missed at the answers of held-out recall sequences."
        )


def _has(line: Mapping[str, Any], name: str) -> bool:
    return is_number(line.get(name))


def _refitted(record: Mapping[str, Any]) -> Iterator[Block]:
    layers = {
        str(layer): {str(k): v for k, v in mapping(errors).items() if is_number(v)}
        for layer, errors in mapping(record.get("layers")).items()
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
